/* Every function of libibverbs with good and with bad arguments; the error numbers are those of the manual pages. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "check.h"

static void devices(void)
{
	int n = -1;
	struct ibv_device **list = MUST(ibv_get_device_list(&n));
	IS(n, 1);
	IS(list[1] == NULL, 1);
	struct ibv_device *device = list[0];
	IS(strcmp(ibv_get_device_name(device), "roce0"), 0);
	IS(device->node_type, IBV_NODE_CA);
	IS(device->transport_type, IBV_TRANSPORT_IB);
	IS(ibv_get_device_guid(device) != 0, 1);
	IS(ibv_get_device_index(device), 0);
	NO_OBJECT(ibv_get_device_name(NULL), EINVAL);
	IS(ibv_get_device_guid(NULL), 0);
	MINUS_ONE(ibv_get_device_index(NULL), EINVAL);
	NO_OBJECT(ibv_open_device(NULL), EINVAL);
	NO_OBJECT(ibv_import_device(0), EOPNOTSUPP);
	/* Libraries of other devices read what is behind the structure. */
	const unsigned char *behind = (const unsigned char *)(device + 1);
	for (int i = 0; i < 64; i++)
		IS(behind[i], 0);
	ibv_free_device_list(list);
	ibv_free_device_list(NULL);

	OK(ibv_fork_init());
	IS(ibv_is_fork_initialized(), IBV_FORK_UNNEEDED);
	IS(strlen(ibv_node_type_str(IBV_NODE_CA)) > 0, 1);
	IS(strcmp(ibv_port_state_str(IBV_PORT_ACTIVE), "unknown") != 0, 1);
	IS(strlen(ibv_event_type_str(IBV_EVENT_QP_FATAL)) > 0, 1);
	IS(strcmp(ibv_event_type_str(9999), "unknown"), 0);
	IS(strlen(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)) > 0, 1);
	IS(strcmp(ibv_wc_status_str(9999), "unknown"), 0);
	/* As the installed libibverbs answers; it names no multiple of the rates from 14 to 300 Gbit/s. */
	static const struct { enum ibv_rate rate; int mult, mbps; } rates[] = {
		{ IBV_RATE_2_5_GBPS, 1, 2500 },	   { IBV_RATE_5_GBPS, 2, 5000 },	{ IBV_RATE_10_GBPS, 4, 10000 },
		{ IBV_RATE_20_GBPS, 8, 20000 },	   { IBV_RATE_30_GBPS, 12, 30000 },	{ IBV_RATE_40_GBPS, 16, 40000 },
		{ IBV_RATE_60_GBPS, 24, 60000 },   { IBV_RATE_80_GBPS, 32, 80000 },	{ IBV_RATE_120_GBPS, 48, 120000 },
		{ IBV_RATE_14_GBPS, -1, 14062 },   { IBV_RATE_56_GBPS, -1, 56250 },	{ IBV_RATE_112_GBPS, -1, 112500 },
		{ IBV_RATE_168_GBPS, -1, 168750 }, { IBV_RATE_25_GBPS, -1, 25781 },	{ IBV_RATE_100_GBPS, -1, 103125 },
		{ IBV_RATE_200_GBPS, -1, 206250 }, { IBV_RATE_300_GBPS, -1, 309375 },	{ IBV_RATE_28_GBPS, 11, 28125 },
		{ IBV_RATE_50_GBPS, 20, 53125 },   { IBV_RATE_400_GBPS, 160, 425000 },	{ IBV_RATE_600_GBPS, 240, 637500 },
		{ IBV_RATE_800_GBPS, 320, 850000 }, { IBV_RATE_1200_GBPS, 480, 1275000 },
	};
	for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
		IS(ibv_rate_to_mult(rates[i].rate), rates[i].mult);
		IS(ibv_rate_to_mbps(rates[i].rate), rates[i].mbps);
		IS(mult_to_ibv_rate(rates[i].mult), rates[i].mult > 0 ? rates[i].rate : IBV_RATE_MAX);
		IS(mbps_to_ibv_rate(rates[i].mbps), rates[i].rate);
	}
	IS(ibv_rate_to_mult(9999), -1);
	IS(mbps_to_ibv_rate(1), IBV_RATE_MAX);
	char text[16];
	MINUS_ONE(ibv_read_sysfs_file("/nowhere", "nothing", text, sizeof text), ENOENT);
	MINUS_ONE(ibv_read_sysfs_file(NULL, "nothing", text, sizeof text), EINVAL);
	IS(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, sizeof text), 5);
	IS(strcmp(text, "Linux"), 0);
	IS(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", text, 3), 2);
	IS(strcmp(text, "Li"), 0);
}

static void contexts(struct ibv_context *context)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex attr_ex;
	OK(ibv_query_device(context, &attr));
	IS(attr.phys_port_cnt, 1);
	IS(attr.vendor_id != 0 && attr.vendor_id != 0xffffff, 1);
	REFUSED(ibv_query_device(context, NULL), EINVAL);
	REFUSED(ibv_query_device(NULL, &attr), EINVAL);
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	memset(&attr_ex, 0xa5, sizeof attr_ex);
	OK(ibv_query_device_ex(context, NULL, &attr_ex));
	IS(attr_ex.orig_attr.max_qp, attr.max_qp);
	IS(attr_ex.tso_caps.max_tso, 0);
	REFUSED(ibv_query_device_ex(context, &input, &attr_ex), EINVAL);
	/* Structures of older and of newer programs. */
	struct verbs_context *vctx = verbs_get_ctx(context);
	struct { struct ibv_device_attr_ex known; unsigned char more[16]; } newer;
	memset(&newer, 0xa5, sizeof newer);
	OK(vctx->query_device_ex(context, NULL, &newer.known, sizeof newer));
	IS(newer.more[0] | newer.more[15], 0);
	memset(&newer, 0xa5, sizeof newer);
	OK(vctx->query_device_ex(context, NULL, &newer.known, sizeof attr));
	IS(((unsigned char *)&newer)[sizeof attr], 0xa5);
	REFUSED(vctx->query_device_ex(context, NULL, &newer.known, 8), EINVAL);

	struct ibv_port_attr port;
	OK(ibv_query_port(context, 1, &port));
	IS(port.state, IBV_PORT_ACTIVE);
	IS(port.link_layer, IBV_LINK_LAYER_ETHERNET);
	REFUSED(ibv_query_port(context, 0, &port), EINVAL);
	REFUSED(ibv_query_port(context, 2, &port), EINVAL);
	uint64_t speed = 0;
	OK(later_ibv_query_port_speed(context, 1, &speed));
	IS(speed, 1000); /* four lanes of 25 Gb/s */
	REFUSED(later_ibv_query_port_speed(context, 2, &speed), EINVAL);
	REFUSED(later_ibv_query_port_speed(context, 257, &speed), EINVAL);
	REFUSED(later_ibv_query_port_speed(context, 1, NULL), EINVAL);
	REFUSED(later_ibv_query_port_speed(NULL, 1, &speed), EINVAL);
	memset(&port, 0xa5, sizeof port);
	OK((ibv_query_port)(context, 1, (struct _compat_ibv_port_attr *)&port));
	IS(((unsigned char *)&port)[48], 0xa5);

	union ibv_gid gid;
	OK(ibv_query_gid(context, 1, 0, &gid));
	IS(gid.raw[0], 0xfe);
	OK(ibv_query_gid(context, 1, 1, &gid));
	IS(gid.raw[11], 0xff);
	MINUS_ONE(ibv_query_gid(context, 1, 1000, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 9, 0, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 0, NULL), EINVAL);
	struct ibv_gid_entry entry, entries[8];
	OK(ibv_query_gid_ex(context, 1, 1, &entry, 0));
	IS(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
	IS(memcmp(&entry.gid, &gid, sizeof gid) == 0 || entry.gid_index == 1, 1);
	REFUSED(ibv_query_gid_ex(context, 1, 1000, &entry, 0), EINVAL);
	REFUSED(ibv_query_gid_ex(context, 1, 1, &entry, 1), EOPNOTSUPP);
	IS(ibv_query_gid_table(context, entries, 8, 0), 2);
	IS(ibv_query_gid_table(context, entries, 1, 0), -EINVAL);
	IS(ibv_query_gid_table(context, entries, 8, 1), -EOPNOTSUPP);
	__be16 pkey = 0;
	OK(ibv_query_pkey(context, 1, 0, &pkey));
	IS(pkey, 0xffff);
	MINUS_ONE(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	IS(ibv_get_pkey_index(context, 1, 0xffff), 0);
	MINUS_ONE(ibv_get_pkey_index(context, 1, 0x1234), EINVAL);
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	OK(ibv_query_rt_values_ex(context, &values));
	values.comp_mask = 1 << 20;
	REFUSED(ibv_query_rt_values_ex(context, &values), EINVAL);
	/* Objects that are not supported. */
	struct ibv_alloc_dm_attr dm = { .length = 64 };
	NO_OBJECT(ibv_alloc_dm(context, &dm), EOPNOTSUPP);
	struct ibv_wq_init_attr wq = { 0 };
	NO_OBJECT(ibv_create_wq(context, &wq), EOPNOTSUPP);
}

static void domains(struct ibv_context *context, struct ibv_pd *pd)
{
	NO_OBJECT(ibv_alloc_pd(NULL), EINVAL);
	REFUSED(ibv_dealloc_pd(NULL), EINVAL);
	struct ibv_pd *other = MUST(ibv_alloc_pd(context));
	IS(other->context == context, 1);
	OK(ibv_dealloc_pd(other));
	REFUSED(ibv_dealloc_pd(other), EINVAL);
	/* Another kind of object. */
	REFUSED(ibv_dealloc_pd((struct ibv_pd *)context), EINVAL);

	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_td *td = MUST(ibv_alloc_td(context, &td_init));
	struct ibv_parent_domain_init_attr init = { .pd = pd, .td = td };
	struct ibv_pd *parent = MUST(ibv_alloc_parent_domain(context, &init));
	REFUSED(ibv_dealloc_td(td), EBUSY);
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 4, NULL, NULL, 0));
	struct ibv_qp *qp = make_qp(parent, cq, IBV_QPT_RC);
	REFUSED(ibv_dealloc_pd(parent), EBUSY);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(parent));
	OK(ibv_dealloc_td(td));
	REFUSED(ibv_dealloc_td(td), EINVAL);
	init.pd = NULL;
	NO_OBJECT(ibv_alloc_parent_domain(context, &init), EINVAL);
	init = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1 << 20 };
	NO_OBJECT(ibv_alloc_parent_domain(context, &init), EINVAL);
	NO_OBJECT(ibv_import_pd(context, 0), EOPNOTSUPP);
}

static void regions(struct ibv_context *context, struct ibv_pd *pd)
{
	char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, 8192, all));
	IS(mr->addr == memory && mr->length == 8192 && mr->pd == pd && mr->context == context, 1);
	REFUSED(ibv_dealloc_pd(pd), EBUSY);
	OK(ibv_dereg_mr(mr));
	REFUSED(ibv_dereg_mr(mr), EINVAL);
	REFUSED(ibv_dereg_mr(NULL), EINVAL);
	NO_OBJECT(ibv_reg_mr(NULL, memory, 64, 0), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, memory, 64, 1 << 15), EINVAL);
	/* Optional rights that nobody knows are no error. */
	mr = MUST(ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_RELAXED_ORDERING | 1 << 28));
	OK(ibv_dereg_mr(mr));
	/* Unmapped memory, and such that may not be written. */
	mprotect(memory + 4096, 4096, PROT_READ);
	NO_OBJECT(ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	mr = MUST(ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_REMOTE_READ));
	OK(ibv_dereg_mr(mr));
	munmap(memory + 4096, 4096);
	NO_OBJECT(ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_REMOTE_READ), EFAULT);
	NO_OBJECT(ibv_reg_mr(pd, memory, ~(size_t)0, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	mr = MUST(ibv_reg_mr_iova(pd, memory, 4096, 0x1000, all));
	OK(ibv_dereg_mr(mr));
	int volatile_access = all;
	mr = MUST(ibv_reg_mr_iova2(pd, memory, 4096, (uintptr_t)memory, volatile_access));
	uint32_t key = mr->rkey;
	IS(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, 1 << 10, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, NULL, 64, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, NULL, 0, IBV_ACCESS_REMOTE_READ), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(NULL, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_READ));
	IS(mr->rkey, key);
	OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, memory + 64, 128, 0));
	IS(mr->addr == memory + 64 && mr->length == 128, 1);
	struct ibv_pd *other = MUST(ibv_alloc_pd(context));
	OK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, other, NULL, 0, 0));
	IS(mr->pd == other, 1);
	REFUSED(ibv_dealloc_pd(other), EBUSY);
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(other));
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, 0), EOPNOTSUPP);
	NO_OBJECT(ibv_import_mr(pd, 0), EOPNOTSUPP);
	struct ibv_sge sge = { 0 };
	REFUSED(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1), EOPNOTSUPP);
	OK(ibv_dontfork_range(memory, 4096));
	OK(ibv_dofork_range(memory, 4096));

	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	IS(mw->type, IBV_MW_TYPE_1);
	OK(ibv_dealloc_mw(mw));
	mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	OK(ibv_dealloc_mw(mw));
	NO_OBJECT(ibv_alloc_mw(pd, 7), EINVAL);
	munmap(memory, 4096);
}

/* Registration by a structure, and buffers of the library's. */
static void later_regions(struct ibv_context *context, struct ibv_pd *pd)
{
	static char memory[4096];
	struct later_mr_attr attr = { .length = sizeof memory, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = 1 << 1 | 1 << 0,
				      .iova = 0x2000, .addr = memory };
	struct ibv_mr *mr = MUST(later_ibv_reg_mr_ex(pd, &attr));
	IS(mr->addr == memory && mr->length == sizeof memory && mr->context == context, 1);
	OK(ibv_dereg_mr(mr));
	attr.comp_mask = 1 << 0;
	NO_OBJECT(later_ibv_reg_mr_ex(pd, &attr), EINVAL);
	for (int bit = 2; bit < 64; bit++) {
		if (bit == 5)
			continue;
		attr.comp_mask = 1 << 1 | 1ull << bit;
		NO_OBJECT(later_ibv_reg_mr_ex(pd, &attr), EOPNOTSUPP);
	}
	NO_OBJECT(later_ibv_reg_mr_ex(pd, NULL), EINVAL);
	NO_OBJECT(later_ibv_reg_mr_ex(NULL, &attr), EOPNOTSUPP);

	void *buf = NULL;
	char *at = MUST(later_ibv_alloc_buf(pd, 10000, &buf));
	IS((uintptr_t)at % sysconf(_SC_PAGESIZE), 0);
	mr = MUST(later_ibv_reg_buf_mr(pd, buf, at + 100, 9900, IBV_ACCESS_LOCAL_WRITE));
	IS(mr->addr == at + 100, 1);
	OK(ibv_dereg_mr(mr));
	NO_OBJECT(later_ibv_reg_buf_mr(pd, buf, at + 100, 9901, 0), EINVAL);
	NO_OBJECT(later_ibv_reg_buf_mr(pd, buf, at - 1, 10, 0), EINVAL);
	NO_OBJECT(later_ibv_reg_buf_mr(pd, buf, at + 1, SIZE_MAX, 0), EINVAL);
	struct ibv_pd *other = MUST(ibv_alloc_pd(context));
	NO_OBJECT(later_ibv_reg_buf_mr(other, buf, at, 10, 0), EINVAL);
	NO_OBJECT(later_ibv_reg_buf_mr(pd, NULL, at, 10, 0), EINVAL);
	OK(ibv_dealloc_pd(other));
	MINUS_ONE(later_ibv_export_buf_dmabuf_fd(buf), ENODATA);
	later_ibv_free_buf(buf);
	later_ibv_free_buf(NULL);
	NO_OBJECT(later_ibv_alloc_buf(pd, SIZE_MAX / 2, &buf), ENOMEM);
	NO_OBJECT(later_ibv_alloc_buf(NULL, 1, &buf), EINVAL);
	NO_OBJECT(later_ibv_alloc_buf(pd, 1, NULL), EINVAL);
}

static void completion_queues(struct ibv_context *context)
{
	NO_OBJECT(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 0x7fffffff, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 4, NULL, NULL, 1), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	NO_OBJECT(ibv_create_cq(NULL, 4, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_comp_channel(NULL), EINVAL);
	struct ibv_comp_channel *channel = MUST(ibv_create_comp_channel(context));
	IS(fcntl(channel->fd, F_GETFL) & O_NONBLOCK, 0);
	IS(fcntl(channel->fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
	int mine;
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 4, &mine, channel, 0));
	IS(cq->cqe >= 4 && cq->channel == channel && cq->cq_context == &mine && channel->refcnt == 1, 1);
	REFUSED(ibv_destroy_comp_channel(channel), EBUSY);
	OK(ibv_req_notify_cq(cq, 0));
	fcntl(channel->fd, F_SETFL, O_NONBLOCK);
	struct ibv_cq *from;
	void *from_context;
	MINUS_ONE(ibv_get_cq_event(channel, &from, &from_context), EAGAIN);
	MINUS_ONE(ibv_get_cq_event(NULL, &from, &from_context), EINVAL);
	MINUS_ONE(ibv_get_cq_event(channel, NULL, &from_context), EINVAL);
	ibv_ack_cq_events(cq, 3); /* none was fetched */
	struct ibv_cq *silent = MUST(ibv_create_cq(context, 4, NULL, NULL, 0));
	OK(ibv_req_notify_cq(silent, 0)); /* and nobody to notify */
	OK(ibv_destroy_cq(silent));
	ibv_ack_cq_events(NULL, 1);
	struct ibv_wc wc;
	IS(ibv_poll_cq(cq, 1, &wc), 0);
	IS(ibv_poll_cq(cq, 0, NULL), 0);
	IS(ibv_poll_cq(cq, -1, &wc) < 0, 1);
	IS(ibv_poll_cq(cq, 1, NULL) < 0, 1);
	OK(ibv_resize_cq(cq, 64));
	IS(cq->cqe >= 64, 1);
	REFUSED(ibv_resize_cq(cq, 0), EINVAL);
	REFUSED(ibv_resize_cq(cq, -1), EINVAL);
	REFUSED(ibv_resize_cq(NULL, 4), EINVAL);
	OK(ibv_destroy_cq(cq));
	IS(channel->refcnt, 0);
	REFUSED(ibv_destroy_cq(cq), EINVAL);
	REFUSED(ibv_destroy_cq(NULL), EINVAL);
	OK(ibv_destroy_comp_channel(channel));
	REFUSED(ibv_destroy_comp_channel(channel), EINVAL);

	struct ibv_cq_init_attr_ex init = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *ex = MUST(ibv_create_cq_ex(context, &init));
	struct ibv_poll_cq_attr poll_attr = { 0 };
	REFUSED(ibv_start_poll(ex, &poll_attr), ENOENT);
	poll_attr.comp_mask = 1;
	REFUSED(ibv_start_poll(ex, &poll_attr), EINVAL);
	REFUSED(ibv_next_poll(ex), EINVAL);
	ibv_end_poll(ex);
	IS(ibv_wc_read_byte_len(ex), 0);
	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	REFUSED(ibv_modify_cq(ibv_cq_ex_to_cq(ex), &moderate), EOPNOTSUPP);
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	init.wc_flags = IBV_WC_EX_WITH_CVLAN;
	NO_OBJECT(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init.wc_flags = 1ull << 40;
	NO_OBJECT(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
	init = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = 1 << 20 };
	NO_OBJECT(ibv_create_cq_ex(context, &init), EINVAL);
	init = (struct ibv_cq_init_attr_ex){ .cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
					     .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN };
	NO_OBJECT(ibv_create_cq_ex(context, &init), EOPNOTSUPP);
}

static void shared_receive_queues(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 2 } };
	NO_OBJECT(ibv_create_srq(NULL, &init), EINVAL);
	NO_OBJECT(ibv_create_srq(pd, NULL), EINVAL);
	struct ibv_srq *srq = MUST(ibv_create_srq(pd, &init));
	struct ibv_srq_attr attr;
	OK(ibv_query_srq(srq, &attr));
	IS(attr.max_wr >= 4 && attr.max_sge >= 2 && attr.srq_limit == 0, 1);
	REFUSED(ibv_query_srq(srq, NULL), EINVAL);
	attr.srq_limit = 2;
	OK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	attr.srq_limit = 1000;
	REFUSED(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	REFUSED(ibv_modify_srq(srq, &attr, 1 << 10), EINVAL);
	REFUSED(ibv_modify_srq(srq, NULL, IBV_SRQ_LIMIT), EINVAL);
	uint32_t number;
	REFUSED(ibv_get_srq_num(srq, &number), EINVAL); /* of no XRC domain */
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr wr[6], *bad = NULL;
	for (int i = 0; i < 6; i++)
		wr[i] = (struct ibv_recv_wr){ .wr_id = i, .next = i < 5 ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	IS(ibv_post_srq_recv(srq, wr, &bad), ENOMEM); /* four fit */
	IS(bad == &wr[4], 1);
	wr[0].next = NULL;
	wr[0].num_sge = 9;
	REFUSED(ibv_post_srq_recv(srq, wr, &bad), EINVAL);
	OK(ibv_post_srq_recv(srq, NULL, &bad));
	struct ibv_qp_init_attr qp_init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
					    .cap = { .max_send_wr = 4, .max_send_sge = 1 } };
	struct ibv_qp *qp = MUST(ibv_create_qp(pd, &qp_init));
	REFUSED(ibv_destroy_srq(srq), EBUSY);
	wr[0].num_sge = 1;
	REFUSED(ibv_post_recv(qp, wr, &bad), EINVAL);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_srq(srq));
	REFUSED(ibv_destroy_srq(srq), EINVAL);

	/* XRC: by the inode of a file, and without one. */
	int fd = open("xrc-domain", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	struct ibv_xrcd_init_attr open_attr = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd };
	NO_OBJECT(ibv_open_xrcd(context, &open_attr), ENOENT);
	open_attr.oflags = O_CREAT;
	struct ibv_xrcd *xrcd = MUST(ibv_open_xrcd(context, &open_attr)), *again = MUST(ibv_open_xrcd(context, &open_attr));
	open_attr.oflags = O_CREAT | O_EXCL;
	NO_OBJECT(ibv_open_xrcd(context, &open_attr), EEXIST);
	open_attr.fd = 9999;
	NO_OBJECT(ibv_open_xrcd(context, &open_attr), EBADF);
	open_attr.comp_mask = IBV_XRCD_INIT_ATTR_FD;
	NO_OBJECT(ibv_open_xrcd(context, &open_attr), EINVAL);
	OK(ibv_close_xrcd(again));
	struct ibv_srq_init_attr_ex ex = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd,
					   .cq = cq,
					   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
							IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	srq = MUST(ibv_create_srq_ex(context, &ex));
	OK(ibv_get_srq_num(srq, &number));
	REFUSED(ibv_close_xrcd(xrcd), EBUSY);
	ex.comp_mask &= ~IBV_SRQ_INIT_ATTR_CQ;
	NO_OBJECT(ibv_create_srq_ex(context, &ex), EINVAL);
	ex.comp_mask |= IBV_SRQ_INIT_ATTR_TM;
	NO_OBJECT(ibv_create_srq_ex(context, &ex), EOPNOTSUPP);
	struct ibv_qp_init_attr_ex target_init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = MUST(ibv_create_qp_ex(context, &target_init));
	to_init(target);
	struct ibv_qp_open_attr qp_open = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
					    .qp_num = target->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV };
	struct ibv_qp *opened = MUST(ibv_open_qp(context, &qp_open));
	IS(opened->qp_num, target->qp_num);
	REFUSED(ibv_post_send(target, NULL, NULL), EINVAL);
	qp_open.qp_num = 0;
	NO_OBJECT(ibv_open_qp(context, &qp_open), EINVAL);
	OK(ibv_destroy_qp(opened));
	OK(ibv_destroy_qp(target));
	OK(ibv_destroy_srq(srq));
	OK(ibv_close_xrcd(xrcd));
	REFUSED(ibv_close_xrcd(xrcd), EINVAL);
	close(fd);
	unlink("xrc-domain");
}

static void address_handles(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1,
				    .grh = { .dgid = own_gid(context), .sgid_index = 1, .hop_limit = 4 } };
	struct ibv_ah *ah = MUST(ibv_create_ah(pd, &attr));
	OK(ibv_destroy_ah(ah));
	REFUSED(ibv_destroy_ah(ah), EINVAL);
	NO_OBJECT(ibv_create_ah(NULL, &attr), EINVAL);
	NO_OBJECT(ibv_create_ah(pd, NULL), EINVAL);
	attr.grh.sgid_index = 200;
	NO_OBJECT(ibv_create_ah(pd, &attr), EINVAL);
	attr.grh.sgid_index = 1;
	attr.is_global = 0;
	NO_OBJECT(ibv_create_ah(pd, &attr), EINVAL);
	struct ibv_wc wc = { .status = IBV_WC_SUCCESS, .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, &grh, &attr), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(pd, &wc, NULL, 1), EINVAL);
	uint8_t mac[6];
	uint16_t vlan;
	REFUSED(ibv_resolve_eth_l2_from_gid(context, &attr, mac, &vlan), EOPNOTSUPP);
}

static void queue_pairs(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_mr *mr)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 2, .max_recv_sge = 2 } };
	NO_OBJECT(ibv_create_qp(NULL, &init), EINVAL);
	NO_OBJECT(ibv_create_qp(pd, NULL), EINVAL);
	init.qp_type = 99;
	NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
	init.qp_type = IBV_QPT_RAW_PACKET;
	NO_OBJECT(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init.qp_type = IBV_QPT_RC;
	init.send_cq = NULL;
	NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
	init.send_cq = cq;
	init.cap.max_send_wr = 0x7fffffff;
	NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
	init.cap.max_send_wr = 4;
	struct ibv_qp *qp = MUST(ibv_create_qp(pd, &init));
	IS(init.cap.max_send_wr >= 4 && qp->state == IBV_QPS_RESET && qp->pd == pd && qp->send_cq == cq, 1);
	REFUSED(ibv_destroy_cq(cq), EBUSY);
	NO_OBJECT(ibv_qp_to_qp_ex(qp), EOPNOTSUPP);
	struct ibv_ece ece = { 0 };
	REFUSED(ibv_query_ece(qp, &ece), EOPNOTSUPP);
	REFUSED(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	IS(ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0), 0);

	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = 64, .lkey = mr->lkey };
	struct ibv_send_wr send = { .wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr recv = { .wr_id = 8, .sg_list = &sge, .num_sge = 1 };
	struct ibv_send_wr *bad_send = NULL;
	struct ibv_recv_wr *bad_recv = NULL;
	REFUSED(ibv_post_recv(qp, &recv, &bad_recv), EINVAL); /* in RESET */
	IS(bad_recv == &recv, 1);
	struct ibv_qp_attr attr = { .qp_state = 99 };
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_RTS;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	REFUSED(ibv_modify_qp(qp, NULL, IBV_QP_STATE), EINVAL);
	REFUSED(ibv_modify_qp(NULL, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	REFUSED(ibv_modify_qp(qp, &attr, IBV_QP_STATE | 1 << 30), EOPNOTSUPP);
	IS(qp->state, IBV_QPS_RESET);
	to_init(qp);
	OK(ibv_post_recv(qp, &recv, &bad_recv));
	REFUSED(ibv_post_send(qp, &send, &bad_send), EINVAL); /* below RTS */
	IS(bad_send == &send, 1);
	OK(ibv_destroy_qp(qp));
	REFUSED(ibv_destroy_qp(qp), EINVAL);
	REFUSED(ibv_destroy_qp(NULL), EINVAL);
	REFUSED(ibv_post_send(qp, &send, &bad_send), EINVAL);

	/* A pair, and what is wrong with requests. */
	struct ibv_qp *a = make_qp(pd, cq, IBV_QPT_RC), *b = make_qp(pd, cq, IBV_QPT_RC);
	union ibv_gid gid = own_gid(context);
	connect_rc(a, b->qp_num, gid);
	connect_rc(b, a->qp_num, gid);
	struct ibv_qp_attr got;
	struct ibv_qp_init_attr got_init;
	OK(ibv_query_qp(a, &got, IBV_QP_STATE, &got_init));
	IS(got.qp_state == IBV_QPS_RTS && got.dest_qp_num == b->qp_num && got_init.qp_type == IBV_QPT_RC && got_init.send_cq == cq, 1);
	IS(memcmp(&got.ah_attr.grh.dgid, &gid, sizeof gid), 0);
	REFUSED(ibv_query_qp(a, NULL, 0, &got_init), EINVAL);
	/* An older program's structure ends before the rate limit. */
	got.rate_limit = 0xa5a5a5a5;
	OK(ibv_query_qp(a, &got, IBV_QP_CAP, &got_init));
	IS(got.rate_limit, 0xa5a5a5a5);
	OK(ibv_query_qp(a, &got, IBV_QP_RATE_LIMIT, &got_init));
	IS(got.rate_limit, 0);
	send.opcode = 77;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_TSO;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_SEND;
	send.num_sge = 99;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	send.num_sge = -1;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	send.num_sge = 1;
	send.sg_list = NULL;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	send.sg_list = &sge;
	send.send_flags = IBV_SEND_INLINE;
	struct ibv_sge wide = { .addr = sge.addr, .length = 4096, .lkey = 0 };
	send.sg_list = &wide;
	REFUSED(ibv_post_send(a, &send, &bad_send), EINVAL);
	REFUSED(ibv_post_send(a, &send, NULL), EINVAL); /* a place for the bad request is not needed */

	/* Partial success: the first is posted, the second is told. */
	struct ibv_send_wr two[2];
	two[0] = (struct ibv_send_wr){ .wr_id = 1, .next = &two[1], .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				       .wr.rdma = { .remote_addr = (uintptr_t)mr->addr, .rkey = mr->rkey } };
	two[1] = two[0];
	two[1].next = NULL;
	two[1].num_sge = -5;
	REFUSED(ibv_post_send(a, two, &bad_send), EINVAL);
	IS(bad_send == &two[1], 1);
	struct ibv_wc wc = completion(cq);
	IS(wc.status, IBV_WC_SUCCESS);
	OK(ibv_destroy_qp(a));
	OK(ibv_destroy_qp(b));

	struct ibv_qp *ud = make_qp(pd, cq, IBV_QPT_UD);
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 224, [15] = 77 } };
	OK(ibv_attach_mcast(ud, &group, 0));
	REFUSED(ibv_attach_mcast(ud, &gid, 0), EINVAL);
	REFUSED(ibv_attach_mcast(ud, NULL, 0), EINVAL);
	REFUSED(ibv_destroy_qp(ud), EBUSY);
	OK(ibv_detach_mcast(ud, &group, 0));
	REFUSED(ibv_detach_mcast(ud, &group, 0), EINVAL);
	OK(ibv_destroy_qp(ud));

	struct ibv_qp_init_attr_ex ex = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
					  .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					  .send_ops_flags = IBV_QP_EX_WITH_TSO };
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.send_ops_flags = 1ull << 40;
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.send_ops_flags = IBV_QP_EX_WITH_SEND;
	ex.comp_mask |= 1 << 25;
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EINVAL);
	ex.comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EINVAL);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	struct ibv_qp *extended = MUST(ibv_create_qp_ex(context, &ex));
	struct ibv_qp_ex *qpx = MUST(ibv_qp_to_qp_ex(extended));
	REFUSED(ibv_wr_complete(qpx), EINVAL); /* nothing was started */
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)mr->addr, 8);
	REFUSED(ibv_wr_complete(qpx), EINVAL); /* in RESET */
	ibv_wr_start(qpx);
	ibv_wr_abort(qpx);
	OK(ibv_destroy_qp(extended));
}

int main(void)
{
	devices();
	struct ibv_context *context = open_first();
	contexts(context);
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	static char memory[8192];
	domains(context, pd);
	regions(context, pd);
	later_regions(context, pd);
	completion_queues(context);
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 64, NULL, NULL, 0));
	struct ibv_mr *mr = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE));
	shared_receive_queues(context, pd, cq, mr);
	address_handles(context, pd);
	queue_pairs(context, pd, cq, mr);
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	REFUSED(ibv_close_device(context), EINVAL);
	REFUSED(ibv_close_device(NULL), EINVAL);
	return failures != 0;
}
