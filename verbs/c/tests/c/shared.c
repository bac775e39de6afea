/* Processes of one host that share an XRC domain by a file. Each receiver has a shared receive queue in it, another process makes the
 * target, and a sender, which need not know the domain, reaches all receivers by the one connection: SEND, WRITE, READ and FETCH&ADD, every
 * byte and every sum checked. `shared FILE RECEIVERS ROUNDS [STORY]`: so many rounds with each receiver. With the story `killed` the process
 * that made the target is killed halfway, with `fewer` the first receiver is. It ends with 1 if anything was wrong. */
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "check.h"

#define RECEIVERS_MAX 64
#define RECEIVES 8
#define BYTES 3000
#define PATIENCE 60

/* What all processes see. */
static struct board {
	unsigned int ready, open, halfway, is_over, failed, live;
	union ibv_gid gid[2];
	uint32_t target, initiator, srq[RECEIVERS_MAX], rkey[RECEIVERS_MAX];
	uint64_t base[RECEIVERS_MAX], sent[RECEIVERS_MAX];
} *board;

static unsigned int receivers, rounds;
static const char *file, *story;
static volatile sig_atomic_t children;

static int has_story(const char *name) { return !strcmp(story, name); }

static void child_ended(int signal) { (void)signal, children++; }

static double seconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void wait_for(const unsigned int *word, unsigned int least)
{
	double begin = seconds();
	while (__atomic_load_n(word, __ATOMIC_SEQ_CST) < least) {
		if (__atomic_load_n(&board->failed, __ATOMIC_SEQ_CST) || seconds() - begin > PATIENCE)
			exit(3);
		usleep(1000);
	}
}

static void add(unsigned int *word) { __atomic_add_fetch(word, 1, __ATOMIC_SEQ_CST); }

static struct ibv_xrcd *open_domain(struct ibv_context *context)
{
	int fd = open(file, O_RDONLY | O_CREAT, 0600);
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = MUST(ibv_open_xrcd(context, &init));
	close(fd);
	return xrcd;
}

static unsigned char byte(unsigned int receiver, unsigned int round, size_t at, unsigned int kind)
{
	return (unsigned char)((receiver * 31 + round * 7 + at + kind * 101) % 251);
}

static void fill(unsigned char *to, unsigned int receiver, unsigned int round, unsigned int kind)
{
	for (size_t at = 0; at < BYTES; at++)
		to[at] = byte(receiver, round, at, kind);
}

static void check(const char *what, const unsigned char *got, unsigned int receiver, unsigned int round, unsigned int kind)
{
	for (size_t at = 0; at < BYTES; at++)
		if (got[at] != byte(receiver, round, at, kind)) {
			fprintf(stderr, "%s, receiver %u, round %u: wrong at byte %zu\n", what, receiver, round, at);
			failures++;
			return;
		}
}

/* The library has started another process, of which this one must know nothing. */
static void has_no_children(void)
{
	IS(children, 0);
	MINUS_ONE(waitpid(-1, NULL, WNOHANG | __WALL), ECHILD);
}

static struct ibv_qp_attr to_peer(uint32_t qpn, union ibv_gid gid)
{
	return (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .max_dest_rd_atomic = 4,
				     .min_rnr_timer = 1,
				     .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 64 } } };
}

/* Makes the target, when the initiator is known, and waits for the end. */
static void creator(void)
{
	struct ibv_context *context = open_first();
	struct ibv_xrcd *xrcd = open_domain(context);
	OK(ibv_query_gid(context, 1, 0, &board->gid[0]));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *qp = MUST(ibv_create_qp_ex(context, &init));
	to_init(qp);
	wait_for(&board->ready, receivers + 1);
	struct ibv_qp_attr attr = to_peer(board->initiator, board->gid[1]);
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	IS(qp->state, IBV_QPS_RTR);
	struct ibv_qp_init_attr init_now;
	OK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init_now));
	IS(attr.qp_state, IBV_QPS_RTR);
	IS(attr.dest_qp_num, board->initiator);
	__atomic_store_n(&board->target, qp->qp_num, __ATOMIC_SEQ_CST);
	add(&board->ready);
	wait_for(&board->open, 1);
	wait_for(&board->is_over, 1);
	has_no_children();
	OK(ibv_destroy_qp(qp));
	OK(ibv_close_xrcd(xrcd));
	OK(ibv_close_device(context));
}

static void receive(struct ibv_srq *srq, unsigned char *to, uint32_t lkey, uint64_t which)
{
	struct ibv_sge sge = { .addr = (uintptr_t)to + which * BYTES, .length = BYTES, .lkey = lkey };
	struct ibv_recv_wr wr = { .wr_id = which, .sg_list = &sge, .num_sge = 1 }, *bad;
	OK(ibv_post_srq_recv(srq, &wr, &bad));
}

static void receiver(unsigned int me)
{
	struct ibv_context *context = open_first();
	struct ibv_xrcd *xrcd = open_domain(context);
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 2 * RECEIVES, NULL, NULL, 0));
	/* A word for sums, what is written, and the receives. */
	size_t size = BYTES * (RECEIVES + 2);
	unsigned char *memory = MUST(calloc(1, size)), *received = memory + 2 * BYTES;
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
								      IBV_ACCESS_REMOTE_ATOMIC));
	struct ibv_srq_init_attr_ex init = { .attr = { .max_wr = RECEIVES, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .xrcd = xrcd, .cq = cq,
					     .pd = pd,
					     .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ |
							  IBV_SRQ_INIT_ATTR_PD };
	struct ibv_srq *srq = MUST(ibv_create_srq_ex(context, &init));
	OK(ibv_get_srq_num(srq, &board->srq[me]));
	for (unsigned int i = 0; i < RECEIVES; i++)
		receive(srq, received, mr->lkey, i);
	board->base[me] = (uintptr_t)memory, board->rkey[me] = mr->rkey;
	add(&board->ready);
	wait_for(&board->ready, receivers + 2);
	struct ibv_qp *qp = NULL;
	if (me == receivers - 1) {
		/* Whoever has a handle keeps the target. */
		struct ibv_qp_open_attr open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
						 .qp_num = board->target, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV };
		qp = MUST(ibv_open_qp(context, &open));
		IS(qp->qp_num, board->target);
		open.qp_num = board->target ^ 1;
		NO_OBJECT(ibv_open_qp(context, &open), EINVAL);
		add(&board->open);
	}
	unsigned int got = 0;
	double last = seconds();
	while (!__atomic_load_n(&board->is_over, __ATOMIC_SEQ_CST) || got < board->sent[me]) {
		struct ibv_wc wc;
		if (ibv_poll_cq(cq, 1, &wc) == 0) {
			if (__atomic_load_n(&board->failed, __ATOMIC_SEQ_CST) || seconds() - last > PATIENCE) {
				fprintf(stderr, "receiver %u: %u messages, and then none\n", me, got);
				exit(3);
			}
			sched_yield();
			continue;
		}
		last = seconds();
		IS(wc.status, IBV_WC_SUCCESS);
		IS(wc.wr_id, got % RECEIVES);
		IS(wc.byte_len, BYTES);
		IS(wc.qp_num, board->target);
		check("a message", received + wc.wr_id * BYTES, me, got, 1);
		receive(srq, received, mr->lkey, wc.wr_id);
		got++;
	}
	IS(got, board->sent[me]);
	if (got > 0)
		check("what was written", memory + BYTES, me, got - 1, 2);
	IS(*(uint64_t *)memory, got);
	has_no_children();
	if (qp)
		OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_srq(srq));
	OK(ibv_close_xrcd(xrcd));
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
}

static void sender(void)
{
	struct ibv_context *context = open_first();
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 4 * RECEIVERS_MAX, NULL, NULL, 0));
	unsigned char *memory = MUST(calloc(RECEIVERS_MAX, 4 * BYTES));
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, RECEIVERS_MAX * 4 * BYTES, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_qp_init_attr_ex init = { .qp_type = IBV_QPT_XRC_SEND, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd, .send_cq = cq,
					    .cap = { .max_send_wr = 4 * RECEIVERS_MAX, .max_send_sge = 1 } };
	struct ibv_qp *qp = MUST(ibv_create_qp_ex(context, &init));
	OK(ibv_query_gid(context, 1, 0, &board->gid[1]));
	board->initiator = qp->qp_num;
	to_init(qp);
	add(&board->ready);
	wait_for(&board->ready, receivers + 2);
	wait_for(&board->open, 1);
	struct ibv_qp_attr attr = to_peer(board->target, board->gid[0]);
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN));
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4 };
	OK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC));
	for (unsigned int round = 0; round < rounds && !failures; round++) {
		unsigned int first = 0;
		if (round == rounds / 2) {
			add(&board->halfway);
			if (has_story("killed") || has_story("fewer"))
				wait_for(&board->halfway, 2);
		}
		if (has_story("fewer") && round >= rounds / 2)
			first = 1;
		for (unsigned int to = first; to < receivers; to++) {
			unsigned char *at = memory + to * 4 * BYTES;
			uint64_t there = board->base[to];
			fill(at, to, round, 1), fill(at + BYTES, to, round, 2);
			struct ibv_sge sge[4];
			for (int i = 0; i < 4; i++)
				sge[i] = (struct ibv_sge){ .addr = (uintptr_t)at + i * BYTES, .length = i == 3 ? 8 : BYTES, .lkey = mr->lkey };
			struct ibv_send_wr wr[4] = {
				{ .next = &wr[1], .sg_list = &sge[0], .num_sge = 1, .opcode = IBV_WR_SEND },
				{ .next = &wr[2], .sg_list = &sge[1], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { .remote_addr = there + BYTES, .rkey = board->rkey[to] } },
				{ .next = &wr[3], .sg_list = &sge[2], .num_sge = 1, .opcode = IBV_WR_RDMA_READ,
				  .wr.rdma = { .remote_addr = there + BYTES, .rkey = board->rkey[to] } },
				{ .sg_list = &sge[3], .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD, .send_flags = IBV_SEND_SIGNALED,
				  .wr.atomic = { .remote_addr = there, .compare_add = 1, .rkey = board->rkey[to] } },
			}, *bad;
			for (int i = 0; i < 4; i++)
				wr[i].wr_id = to, wr[i].qp_type.xrc.remote_srqn = board->srq[to];
			OK(ibv_post_send(qp, wr, &bad));
			board->sent[to]++;
		}
		double begin = seconds();
		for (unsigned int to = first; to < receivers && !failures; to++) {
			struct ibv_wc wc;
			while (ibv_poll_cq(cq, 1, &wc) == 0) {
				if (seconds() - begin > PATIENCE)
					fprintf(stderr, "round %u: nothing of receiver %u\n", round, to), exit(3);
				sched_yield();
			}
			IS(wc.status, IBV_WC_SUCCESS);
			IS(wc.wr_id, to);
			check("what was read back", memory + to * 4 * BYTES + 2 * BYTES, to, round, 2);
			IS(*(uint64_t *)(memory + to * 4 * BYTES + 3 * BYTES), round);
		}
	}
	add(&board->is_over);
	OK(ibv_destroy_qp(qp));
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
}

static pid_t start(void (*role)(unsigned int), unsigned int number)
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(SIGCHLD, child_ended);
		role(number);
		exit(failures != 0);
	}
	return pid;
}

static void as_creator(unsigned int number) { (void)number, creator(); }
static void as_sender(unsigned int number) { (void)number, sender(); }

int main(int argc, char **argv)
{
	if (argc < 4)
		return fprintf(stderr, "usage: shared FILE RECEIVERS ROUNDS [killed|fewer]\n"), 2;
	file = argv[1], receivers = (unsigned int)atoi(argv[2]), rounds = (unsigned int)atoi(argv[3]), story = argc > 4 ? argv[4] : "";
	if (receivers < 1 || receivers > RECEIVERS_MAX)
		return fprintf(stderr, "1 to %d receivers\n", RECEIVERS_MAX), 2;
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* Nobody who lives on may have this: a program whose output goes to another one would never end. */
	int ends[2];
	OK(pipe(ends));
	pid_t pids[RECEIVERS_MAX + 2];
	for (unsigned int i = 0; i < receivers; i++)
		pids[i] = start(receiver, i);
	pids[receivers] = start(as_creator, 0);
	pids[receivers + 1] = start(as_sender, 0);
	close(ends[1]);
	unsigned int victim = has_story("killed") ? receivers : has_story("fewer") ? 0 : receivers + 2;
	if (victim < receivers + 2) {
		wait_for(&board->halfway, 1);
		kill(pids[victim], SIGKILL);
		waitpid(pids[victim], NULL, 0);
		add(&board->halfway);
	}
	for (unsigned int i = 0; i < receivers + 2; i++) {
		int status = 0;
		if (i != victim && waitpid(pids[i], &status, 0) >= 0 && status) {
			fprintf(stderr, "process %u of %u ended with %x\n", i, receivers + 2, (unsigned int)status);
			add(&board->failed);
			failures++;
		}
	}
	struct pollfd poll_for = { .fd = ends[0], .events = POLLIN };
	IS(poll(&poll_for, 1, 3000), 1);
	printf("%u receivers, %u rounds, %d wrong\n", receivers, rounds, failures);
	return failures != 0;
}
