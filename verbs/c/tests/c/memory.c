/*
 * Memory that may not be accessed, memory that the program unmaps while it is registered, and regions without memory. Argument: which
 * regions, or a kernel.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <sys/mman.h>

#include "check.h"
#include "filter.h"

#define PAGES 4
#define PAGE 4096

static struct ibv_context *context;
static struct ibv_pd *pd;
static char local[PAGES * PAGE];
static struct ibv_mr *local_mr;

static struct ibv_qp *peer;

/* A queue pair that is connected to another one, the peer; each with a completion queue. */
static struct ibv_qp *connected(void)
{
	struct ibv_qp *qp = make_qp(pd, MUST(ibv_create_cq(context, 16, NULL, NULL, 0)), IBV_QPT_RC);
	peer = make_qp(pd, MUST(ibv_create_cq(context, 16, NULL, NULL, 0)), IBV_QPT_RC);
	connect_rc(qp, peer->qp_num, own_gid(context));
	connect_rc(peer, qp->qp_num, own_gid(context));
	return qp;
}

static void destroyed(struct ibv_qp *qp)
{
	struct ibv_cq *cqs[2] = { qp->send_cq, peer->send_cq };
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_qp(peer));
	OK(ibv_destroy_cq(cqs[0]));
	OK(ibv_destroy_cq(cqs[1]));
}

static enum ibv_wc_status access_it(struct ibv_qp *qp, enum ibv_wr_opcode opcode, char *at, unsigned int length, struct ibv_mr *mr)
{
	struct ibv_sge sge = { .addr = (uintptr_t)local, .length = length, .lkey = local_mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)at;
		wr.wr.atomic.compare_add = 1;
		wr.wr.atomic.rkey = mr->rkey;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)at;
		wr.wr.rdma.rkey = mr->rkey;
	}
	OK(ibv_post_send(qp, &wr, &bad));
	return completion(qp->send_cq).status;
}

/* Accesses before and after the memory goes away: the request fails, and the process lives. */
static void unmapped(int access)
{
	const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (int i = 0; i < 3; i++) {
		unsigned int length = opcodes[i] == IBV_WR_ATOMIC_FETCH_AND_ADD ? 8 : 3 * PAGE;
		char *memory = mmap(NULL, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, PAGES * PAGE, access));
		struct ibv_qp *qp = connected();
		IS(access_it(qp, opcodes[i], memory, length, mr), IBV_WC_SUCCESS);
		/* Threads of the library map nothing there: addresses without rights stay taken. */
		mmap(memory, PAGES * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		IS(access_it(qp, opcodes[i], memory, length, mr), IBV_WC_REM_ACCESS_ERR);
		destroyed(qp);
		munmap(memory, PAGES * PAGE);
		OK(ibv_dereg_mr(mr));
	}
}

/* From here on the kernel knows no advice that is newer than Linux 5.13. */
static void with_an_old_kernel(void)
{
	struct sock_filter rules[] = {
		LOAD(nr),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_madvise, 0, 3),
		LOAD(args[2]),
		BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 22, 0, 1), /* MADV_POPULATE_READ */
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	filter_calls(rules, sizeof rules / sizeof *rules);
	errno = 0;
	IS(madvise(local, sizeof local, 22), -1);
	IS(errno, EINVAL);
}

static char *map(int protection, int flags, int fd)
{
	char *memory = mmap(NULL, PAGES * PAGE, protection, flags, fd, 0);
	IS(memory != MAP_FAILED, 1);
	return memory;
}

/* The kernel's clock data: readable, and no memory. */
static char *device(void)
{
	char line[256];
	unsigned long at = 0;
	FILE *maps = MUST(fopen("/proc/self/maps", "r"));
	while (!at && fgets(line, sizeof line, maps))
		if (strstr(line, "[vvar"))
			at = strtoul(line, NULL, 16);
	fclose(maps);
	if (!at)
		fprintf(stderr, "SKIPPED the mapping of a device: this kernel shows none\n");
	return (char *)at;
}

/* Every call that registers memory refuses what is not mapped with the right, and registers the same memory as far as it is. */
static void rights(void)
{
	const int write = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, both = PROT_READ | PROT_WRITE;
	char name[] = "/tmp/roce-memory-XXXXXX";
	int fd = mkstemp(name), to_read = open(name, O_RDONLY);
	unlink(name);
	OK(ftruncate(fd, PAGE + 1));
	char *guarded = map(both, MAP_PRIVATE | MAP_ANONYMOUS, -1), *parts = map(both, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	OK(mprotect(guarded + 2 * PAGE, PAGE, PROT_NONE));
	OK(mprotect(parts + 2 * PAGE, PAGE, PROT_READ));
	const struct {
		char *at;
		size_t readable, writable; /* bytes */
	} mappings[] = {
		{ guarded, 2 * PAGE, 2 * PAGE },
		{ parts, PAGES * PAGE, 2 * PAGE },
		{ map(PROT_READ, MAP_SHARED, to_read), 2 * PAGE, 0 },
		{ map(both, MAP_SHARED, fd), 2 * PAGE, 2 * PAGE },
		{ device(), 0, 0 },
	};
	for (int i = 0; i < 5; i++) {
		char *at = mappings[i].at;
		for (int writes = 0; at && writes < 2; writes++) {
			const int access = writes ? write : IBV_ACCESS_REMOTE_READ;
			const size_t good = writes ? mappings[i].writable : mappings[i].readable, bad = good + 1;
			struct ibv_mr *mr;
			/* The page where the right ends belongs to the region with its first byte. */
			if (good < PAGES * PAGE) {
				NO_OBJECT(ibv_reg_mr(pd, at, bad, access), EFAULT);
				NO_OBJECT(ibv_reg_mr_iova(pd, at, bad, 0x1000, access), EFAULT);
				NO_OBJECT(ibv_reg_mr_iova2(pd, at, bad, 0x1000, access | IBV_ACCESS_RELAXED_ORDERING), EFAULT);
				mr = MUST(ibv_reg_mr(pd, local, sizeof local, access));
				IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, at, bad, 0), IBV_REREG_MR_ERR_INPUT);
				IS(errno, EFAULT);
				IS(mr->addr == local && mr->length == sizeof local, 1);
				OK(ibv_dereg_mr(mr));
			}
			if (good > 0) {
				OK(ibv_dereg_mr(MUST(ibv_reg_mr(pd, at, good, access))));
				OK(ibv_dereg_mr(MUST(ibv_reg_mr_iova(pd, at, good, 0x1000, access))));
				mr = MUST(ibv_reg_mr(pd, local, sizeof local, access));
				OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, at, good, 0));
				OK(ibv_dereg_mr(mr));
			}
		}
		/* A region that was registered to be read is to be written too, under the address that it has for requests. */
		if (mappings[i].readable > 0) {
			struct ibv_mr *mr = MUST(ibv_reg_mr_iova(pd, at, mappings[i].readable, 0x7000, IBV_ACCESS_REMOTE_READ));
			const int may = mappings[i].writable == mappings[i].readable;
			IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, write | IBV_ACCESS_REMOTE_READ), may ? 0 : IBV_REREG_MR_ERR_INPUT);
			IS(errno, may ? errno : EFAULT);
			struct ibv_qp *qp = connected();
			IS(access_it(qp, IBV_WR_RDMA_WRITE, (char *)0x7000, 8, mr), may ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
			destroyed(qp);
			OK(ibv_dereg_mr(mr));
		}
	}
	for (int i = 0; i < 4; i++)
		munmap(mappings[i].at, PAGES * PAGE);
	/* Memory on demand need not be there; what is missing is an error of the request. */
	struct ibv_device_attr_ex attr;
	OK(ibv_query_device_ex(context, NULL, &attr));
	if (attr.odp_caps.general_caps & IBV_ODP_SUPPORT) {
		char *none = map(PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
		struct ibv_mr *mr = MUST(ibv_reg_mr(pd, none, PAGE, write | IBV_ACCESS_ON_DEMAND));
		OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, write | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_ON_DEMAND));
		OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, none, 2 * PAGE, 0));
		struct ibv_qp *qp = connected();
		IS(access_it(qp, IBV_WR_RDMA_READ, none, 8, mr), IBV_WC_REM_ACCESS_ERR);
		destroyed(qp);
		OK(ibv_dereg_mr(mr));
		munmap(none, PAGES * PAGE);
	}
	close(fd);
	close(to_read);
}

static void on_demand(void)
{
	struct ibv_device_attr_ex attr;
	OK(ibv_query_device_ex(context, NULL, &attr));
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	if (!(attr.odp_caps.general_caps & IBV_ODP_SUPPORT)) {
		fprintf(stderr, "SKIPPED memory on demand: this kernel copies nothing within a process\n");
		NO_OBJECT(ibv_reg_mr(pd, local, sizeof local, all | IBV_ACCESS_ON_DEMAND), EOPNOTSUPP);
		return;
	}
	const unsigned int rc = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_SRQ_RECV;
	IS(attr.odp_caps.general_caps, IBV_ODP_SUPPORT);
	IS(attr.odp_caps.per_transport_caps.rc_odp_caps, rc);
	IS(attr.xrc_odp_caps, rc);
	unmapped(all | IBV_ACCESS_ON_DEMAND);
	/* It need not even be there when it is registered; the whole address space is no region. */
	struct ibv_mr *nothing = MUST(ibv_reg_mr(pd, (void *)PAGE, PAGE, all | IBV_ACCESS_ON_DEMAND));
	struct ibv_qp *qp = connected();
	IS(access_it(qp, IBV_WR_RDMA_READ, (char *)PAGE, 64, nothing), IBV_WC_REM_ACCESS_ERR);
	destroyed(qp);
	/* Nothing is fetched ahead of an access, whichever way it is asked for. */
	struct ibv_sge part = { .addr = PAGE, .length = PAGE, .lkey = nothing->lkey };
	const enum ibv_advise_mr_advice advice[] = {
		IBV_ADVISE_MR_ADVICE_PREFETCH, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT,
	};
	for (int i = 0; i < 3; i++) {
		REFUSED(ibv_advise_mr(pd, advice[i], 0, &part, 1), EOPNOTSUPP);
		REFUSED(ibv_advise_mr(pd, advice[i], IBV_ADVISE_MR_FLAG_FLUSH, &part, 1), EOPNOTSUPP);
	}
	OK(ibv_dereg_mr(nothing));
	NO_OBJECT(ibv_reg_mr(pd, NULL, SIZE_MAX, all | IBV_ACCESS_ON_DEMAND), EFAULT);
	NO_OBJECT(ibv_reg_mr_iova(pd, NULL, SIZE_MAX, 0, all | IBV_ACCESS_ON_DEMAND), EFAULT);
}

/* Gathering from a null region gives zeros, what is scattered to it is discarded, and peers cannot access it. */
static void null_regions(void)
{
	struct ibv_mr *null = MUST(ibv_alloc_null_mr(pd));
	IS(null->pd == pd && null->context == context && null->addr == NULL && null->length == SIZE_MAX, 1);
	NO_OBJECT(verbs_get_ctx(context)->alloc_null_mr(NULL), EINVAL);
	IS(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	struct ibv_qp *qp = connected();
	strcpy(local, "beginend");
	memset(local + PAGE, 'x', PAGE);
	struct ibv_sge from[3] = {
		{ .addr = (uintptr_t)local, .length = 5, .lkey = local_mr->lkey },
		{ .addr = 0x123456789000, .length = 3, .lkey = null->lkey },
		{ .addr = (uintptr_t)local + 5, .length = 4, .lkey = local_mr->lkey },
	};
	struct ibv_sge to[2] = {
		{ .addr = 0, .length = 2, .lkey = null->lkey },
		{ .addr = (uintptr_t)local + PAGE, .length = 64, .lkey = local_mr->lkey },
	};
	struct ibv_recv_wr recv = { .sg_list = to, .num_sge = 2 }, *bad_recv;
	struct ibv_send_wr send = { .sg_list = from, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad_send;
	OK(ibv_post_recv(peer, &recv, &bad_recv));
	OK(ibv_post_send(qp, &send, &bad_send));
	IS(completion(qp->send_cq).status, IBV_WC_SUCCESS);
	IS(completion(peer->recv_cq).status, IBV_WC_SUCCESS);
	IS(memcmp(local + PAGE, "gin\0\0\0end\0x", 11), 0);
	IS(access_it(qp, IBV_WR_RDMA_WRITE, local, 8, null), IBV_WC_REM_ACCESS_ERR);
	destroyed(qp);
	struct ibv_mw_bind_info info = { .mr = null, .length = 8 };
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	qp = connected();
	struct ibv_mw_bind bind = { .bind_info = info };
	REFUSED(ibv_bind_mw(qp, mw, &bind), EINVAL);
	destroyed(qp);
	OK(ibv_dealloc_mw(mw));
	OK(ibv_dereg_mr(null));
	REFUSED(ibv_dereg_mr(null), EINVAL);
}

int main(int argc, char **argv)
{
	int every_region = argc > 1 && !strcmp(argv[1], "every-region");
	if (every_region)
		setenv("ROCE_MEMORY", "on-demand", 1);
	if (argc > 1 && !strcmp(argv[1], "old-kernel"))
		with_an_old_kernel();
	context = open_first();
	pd = MUST(ibv_alloc_pd(context));
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
	struct ibv_device_attr_ex attr;
	struct ibv_device_attr *basic = &attr.orig_attr;
	OK(ibv_query_device_ex(context, NULL, &attr));
	if (every_region && !attr.odp_caps.general_caps) {
		fprintf(stderr, "SKIPPED memory on demand: this kernel copies nothing within a process\n");
		return 0;
	}
	IS(basic->atomic_cap, IBV_ATOMIC_HCA);
	local_mr = MUST(ibv_reg_mr(pd, local, sizeof local, all));
	if (every_region) {
		unmapped(all);
	} else {
		on_demand();
		rights();
	}
	null_regions();
	OK(ibv_dereg_mr(local_mr));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
