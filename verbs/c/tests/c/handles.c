/* Bad input: pointers that are NULL, of a destroyed object or of another kind, for each call; and numbers that are too large. */
#include <fcntl.h>
#include <limits.h>
#include <rdma/rdma_cma.h>

#include "check.h"

int ibv_query_gid_type(struct ibv_context *context, uint8_t port_num, unsigned int index, int *type);

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char memory[4096] __attribute__((aligned(8)));

/* What a call may be given instead of an object: `made` ends in `end`. */
#define EACH_BAD(type, made, end, name)                                                                 \
	type *gone_##name = MUST(made);                                                                 \
	OK(end(gone_##name));                                                                           \
	type *bad_##name[] = { NULL, gone_##name, (type *)pd, (type *)((char *)gone_##name + 1) };      \
	for (type **at_##name = bad_##name, *name; at_##name < bad_##name + 4 && (name = *at_##name, 1); at_##name++)
/* The same for calls that the header makes through a member of the object: only a destroyed object can be passed. */
#define DESTROYED(type, made, end, name) \
	type *name = MUST(made);         \
	OK(end(name));                   \
	for (int once_ = 1; once_; once_ = 0)

static void devices(void)
{
	struct ibv_device *bad[] = { NULL, (struct ibv_device *)pd, (struct ibv_device *)memory };
	for (int i = 0; i < 3; i++) {
		NO_OBJECT(ibv_get_device_name(bad[i]), EINVAL);
		IS(ibv_get_device_guid(bad[i]), 0);
		MINUS_ONE(ibv_get_device_index(bad[i]), EINVAL);
		NO_OBJECT(ibv_open_device(bad[i]), EINVAL);
	}
}

static void contexts(void)
{
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_gid_entry entry;
	struct ibv_async_event event;
	union ibv_gid gid;
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	struct ibv_ah_attr ah;
	__be16 pkey;
	int type;
	EACH_BAD(struct ibv_context, open_first(), ibv_close_device, bad) {
		REFUSED(ibv_query_device(bad, &attr), EINVAL);
		REFUSED((ibv_query_port)(bad, 1, (struct _compat_ibv_port_attr *)&port), EINVAL);
		MINUS_ONE(ibv_query_gid(bad, 1, 0, &gid), EINVAL);
		REFUSED(_ibv_query_gid_ex(bad, 1, 0, &entry, 0, sizeof entry), EINVAL);
		IS(_ibv_query_gid_table(bad, &entry, 1, 0, sizeof entry), -EINVAL);
		MINUS_ONE(ibv_query_gid_type(bad, 1, 0, &type), EINVAL);
		MINUS_ONE(ibv_query_pkey(bad, 1, 0, &pkey), EINVAL);
		MINUS_ONE(ibv_get_pkey_index(bad, 1, 0xffff), EINVAL);
		NO_OBJECT(ibv_alloc_pd(bad), EINVAL);
		NO_OBJECT(ibv_create_cq(bad, 4, NULL, NULL, 0), EINVAL);
		NO_OBJECT(ibv_create_comp_channel(bad), EINVAL);
		MINUS_ONE(ibv_get_async_event(bad, &event), EINVAL);
		MINUS_ONE(ibv_init_ah_from_wc(bad, 1, &wc, &grh, &ah), EINVAL);
		REFUSED(ibv_close_device(bad), EINVAL);
	}
	/* Calls that the header makes through the structure around a context: only a closed one can be passed. */
	struct ibv_port_attr full;
	struct ibv_device_attr_ex attr_ex;
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4 };
	struct ibv_qp_init_attr_ex qp_init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
					       .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	struct ibv_srq_init_attr_ex srq_init = { .attr = { .max_wr = 1, .max_sge = 1 }, .pd = pd,
						 .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_qp_open_attr open_attr = { 0 };
	struct ibv_td_init_attr td_init = { 0 };
	struct ibv_parent_domain_init_attr parent_init = { .pd = pd };
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	DESTROYED(struct ibv_context, open_first(), ibv_close_device, gone) {
		REFUSED(ibv_query_port(gone, 1, &full), EINVAL);
		REFUSED(ibv_query_device_ex(gone, NULL, &attr_ex), EINVAL);
		REFUSED(ibv_query_rt_values_ex(gone, &values), EINVAL);
		NO_OBJECT(ibv_create_cq_ex(gone, &cq_init), EINVAL);
		NO_OBJECT(ibv_create_qp_ex(gone, &qp_init), EINVAL);
		NO_OBJECT(ibv_create_srq_ex(gone, &srq_init), EINVAL);
		NO_OBJECT(ibv_open_xrcd(gone, &xrcd_init), EINVAL);
		NO_OBJECT(ibv_open_qp(gone, &open_attr), EINVAL);
		NO_OBJECT(ibv_alloc_td(gone, &td_init), EINVAL);
		NO_OBJECT(ibv_alloc_parent_domain(gone, &parent_init), EINVAL);
	}
	/* A living context, and NULL for what the call reads or fills in. */
	REFUSED(ibv_query_device(context, NULL), EINVAL);
	REFUSED(ibv_query_device_ex(context, NULL, NULL), EINVAL);
	REFUSED((ibv_query_port)(context, 1, NULL), EINVAL);
	REFUSED(ibv_query_rt_values_ex(context, NULL), EINVAL);
	MINUS_ONE(ibv_query_gid_type(context, 1, 0, NULL), EINVAL);
	MINUS_ONE(ibv_query_gid_type(context, 1, 100000, &type), EINVAL);
	MINUS_ONE(ibv_query_gid_type(context, 2, 0, &type), EINVAL);
	IS(ibv_query_gid_type(context, 1, 1, &type), 0);
	REFUSED(_ibv_query_gid_ex(context, 1, 0, NULL, 0, sizeof entry), EINVAL);
	REFUSED(_ibv_query_gid_ex(context, 256 + 1, 0, &entry, 0, sizeof entry), EINVAL);
	REFUSED(_ibv_query_gid_ex(context, 1, UINT_MAX, &entry, 0, sizeof entry), EINVAL);
	IS(_ibv_query_gid_table(context, NULL, 8, 0, sizeof entry), -EINVAL);
	IS(_ibv_query_gid_table(context, &entry, 8, 0, 0), -EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 1, INT_MIN, &pkey), EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 1, 0, NULL), EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 2, 0, &pkey), EINVAL);
	MINUS_ONE(ibv_get_pkey_index(context, 2, 0xffff), EINVAL);
	NO_OBJECT(ibv_create_cq_ex(context, NULL), EINVAL);
	struct verbs_context *vctx = verbs_get_ctx(context);
	NO_OBJECT(vctx->create_srq_ex(context, NULL), EINVAL);
	NO_OBJECT(ibv_open_xrcd(context, NULL), EINVAL);
	NO_OBJECT(ibv_open_qp(context, NULL), EINVAL);
	NO_OBJECT(ibv_open_qp(context, &open_attr), EINVAL);
	NO_OBJECT(ibv_alloc_td(context, NULL), EINVAL);
	NO_OBJECT(ibv_alloc_parent_domain(context, NULL), EINVAL);
	NO_OBJECT(vctx->create_qp_ex(context, NULL), EINVAL);
}

static void domains(void)
{
	struct ibv_qp_init_attr qp_init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr ah_attr = { .is_global = 1, .port_num = 1,
				       .grh = { .dgid = own_gid(context), .sgid_index = 1, .hop_limit = 1 } };
	struct ibv_wc wc = { .wc_flags = IBV_WC_GRH };
	struct ibv_grh grh = { 0 };
	struct ibv_pd *gone = MUST(ibv_alloc_pd(context));
	OK(ibv_dealloc_pd(gone));
	struct ibv_pd *bads[] = { NULL, gone, (struct ibv_pd *)cq, (struct ibv_pd *)((char *)gone + 1) };
	for (int i = 0; i < 4; i++) {
		struct ibv_pd *bad = bads[i];
		NO_OBJECT((ibv_reg_mr)(bad, memory, 64, 0), EINVAL);
		NO_OBJECT((ibv_reg_mr_iova)(bad, memory, 64, 0, 0), EINVAL);
		NO_OBJECT(ibv_reg_mr_iova2(bad, memory, 64, 0, 0), EINVAL);
		NO_OBJECT(ibv_create_qp(bad, &qp_init), EINVAL);
		NO_OBJECT(ibv_create_srq(bad, &srq_init), EINVAL);
		NO_OBJECT(ibv_create_ah(bad, &ah_attr), EINVAL);
		NO_OBJECT(ibv_create_ah_from_wc(bad, &wc, &grh, 1), EINVAL);
		IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, bad, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
		struct ibv_parent_domain_init_attr init = { .pd = bad };
		NO_OBJECT(ibv_alloc_parent_domain(context, &init), EINVAL);
		REFUSED(ibv_dealloc_pd(bad), EINVAL);
	}
	NO_OBJECT(ibv_alloc_mw(gone, IBV_MW_TYPE_1), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(pd, NULL, &grh, 1), EINVAL);
	NO_OBJECT(ibv_create_ah_from_wc(pd, &wc, &grh, 9), EINVAL);
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, &wc, &grh, NULL), EINVAL);
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, NULL, &grh, &ah_attr), EINVAL);
	struct ibv_parent_domain_init_attr init = { .pd = pd, .td = (struct ibv_td *)cq };
	NO_OBJECT(ibv_alloc_parent_domain(context, &init), EINVAL);
	struct ibv_td_init_attr td_init = { .comp_mask = 1 };
	NO_OBJECT(ibv_alloc_td(context, &td_init), EINVAL);
	td_init.comp_mask = 0;
	DESTROYED(struct ibv_td, ibv_alloc_td(context, &td_init), ibv_dealloc_td, td)
		REFUSED(ibv_dealloc_td(td), EINVAL);
}

static void regions(void)
{
	EACH_BAD(struct ibv_mr, ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE), ibv_dereg_mr, bad) {
		REFUSED(ibv_dereg_mr(bad), EINVAL);
		IS(ibv_rereg_mr(bad, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0), IBV_REREG_MR_ERR_INPUT);
	}
	/* Sizes and places that no region has. */
	NO_OBJECT(ibv_reg_mr(pd, NULL, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NO_OBJECT(ibv_reg_mr(pd, (void *)UINTPTR_MAX, 64, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	NO_OBJECT(ibv_reg_mr_iova2(pd, memory, 64, UINT64_MAX - 8, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	NO_OBJECT(ibv_reg_mr_iova2(pd, memory, 64, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ZERO_BASED), EINVAL);
	NO_OBJECT(ibv_reg_mr(pd, memory, 64, INT_MIN), EINVAL);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, (void *)8, 4096, 0), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_REMOTE_WRITE), IBV_REREG_MR_ERR_INPUT);
	IS(ibv_rereg_mr(mr, -1, pd, memory, 64, 0), IBV_REREG_MR_ERR_INPUT);
	IS(mr->addr == memory && mr->length == sizeof memory && mr->pd == pd, 1);
}

static void windows(void)
{
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	struct ibv_mw_bind bind = { .bind_info = { .mr = mr, .addr = (uintptr_t)memory, .length = 64 } };
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	NO_OBJECT(ibv_alloc_mw(pd, 0), EINVAL);
	REFUSED(ibv_bind_mw(qp, mw, &bind), EINVAL); /* the queue pair cannot send */
	struct ibv_context_ops *ops = &context->ops;
	REFUSED(ops->bind_mw(NULL, mw, &bind), EINVAL);
	REFUSED(ops->bind_mw(qp, NULL, &bind), EINVAL);
	REFUSED(ops->bind_mw(qp, mw, NULL), EINVAL);
	REFUSED(ops->bind_mw(qp, (struct ibv_mw *)pd, &bind), EINVAL);
	bind.bind_info.mr = (struct ibv_mr *)pd;
	REFUSED(ops->bind_mw(qp, mw, &bind), EINVAL);
	bind.bind_info.mr = mr;
	bind.send_flags = 1 << 20;
	REFUSED(ibv_bind_mw(qp, mw, &bind), EINVAL);
	OK(ibv_dealloc_mw(mw));
	REFUSED(ibv_dealloc_mw(mw), EINVAL);
	REFUSED(ops->dealloc_mw(NULL), EINVAL);
	NO_OBJECT(ops->alloc_mw(NULL, IBV_MW_TYPE_1), EINVAL);
	bind.send_flags = 0;
	REFUSED(ibv_bind_mw(qp, mw, &bind), EINVAL);
	OK(ibv_destroy_qp(qp));
}

static void queues(void)
{
	void *nothing;
	struct ibv_cq *from;
	struct ibv_wc wc;
	EACH_BAD(struct ibv_comp_channel, ibv_create_comp_channel(context), ibv_destroy_comp_channel, bad) {
		MINUS_ONE(ibv_get_cq_event(bad, &from, &nothing), EINVAL);
		REFUSED(ibv_destroy_comp_channel(bad), EINVAL);
		if (bad)
			NO_OBJECT(ibv_create_cq(context, 4, NULL, bad, 0), EINVAL);
	}
	struct ibv_comp_channel *channel = MUST(ibv_create_comp_channel(context));
	MINUS_ONE(ibv_get_cq_event(channel, NULL, &nothing), EINVAL);
	MINUS_ONE(ibv_get_cq_event(channel, &from, NULL), EINVAL);
	OK(ibv_destroy_comp_channel(channel));

	NO_OBJECT(ibv_create_cq(context, INT_MAX, NULL, NULL, 0), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 4, NULL, NULL, context->num_comp_vectors), EINVAL);
	NO_OBJECT(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	EACH_BAD(struct ibv_cq, ibv_create_cq(context, 4, NULL, NULL, 0), ibv_destroy_cq, no_cq) {
		REFUSED(ibv_resize_cq(no_cq, 8), EINVAL);
		REFUSED(ibv_destroy_cq(no_cq), EINVAL);
		ibv_ack_cq_events(no_cq, 1);
		struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = no_cq, .qp_type = IBV_QPT_RC };
		NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
		init.recv_cq = cq;
		init.send_cq = no_cq;
		NO_OBJECT(ibv_create_qp(pd, &init), EINVAL);
	}
	REFUSED(ibv_resize_cq(cq, 0), EINVAL);
	REFUSED(ibv_resize_cq(cq, INT_MAX), EINVAL);
	REFUSED(ibv_resize_cq(cq, INT_MIN), EINVAL);
	IS(ibv_poll_cq(cq, -1, &wc), -EINVAL);
	IS(ibv_poll_cq(cq, 1, NULL), -EINVAL);
	IS(ibv_poll_cq(cq, 0, NULL), 0);
	DESTROYED(struct ibv_cq, ibv_create_cq(context, 4, NULL, NULL, 0), ibv_destroy_cq, gone) {
		IS(ibv_poll_cq(gone, 1, &wc), -EINVAL);
		REFUSED(ibv_req_notify_cq(gone, 0), EINVAL);
	}
	struct ibv_cq_init_attr_ex ex_init = { .cqe = 4, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_cq_ex *ex = MUST(ibv_create_cq_ex(context, &ex_init));
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(ex)));
	REFUSED(ibv_start_poll(ex, &poll_attr), EINVAL);
	REFUSED(ibv_next_poll(ex), EINVAL);
	ibv_end_poll(ex);
	IS(ibv_wc_read_byte_len(ex), 0);
	ex_init.comp_mask = IBV_CQ_INIT_ATTR_MASK_PD;
	ex_init.parent_domain = (struct ibv_pd *)cq;
	NO_OBJECT(ibv_create_cq_ex(context, &ex_init), EINVAL);
	ibv_ack_async_event(NULL);
	struct ibv_async_event never = { .event_type = IBV_EVENT_QP_FATAL };
	ibv_ack_async_event(&never);
}

static void queue_pairs(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	struct ibv_qp_init_attr init;
	union ibv_gid group = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 224, [15] = 77 } };
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_send_wr send = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	EACH_BAD(struct ibv_qp, make_qp(pd, cq, IBV_QPT_UD), ibv_destroy_qp, bad) {
		REFUSED(ibv_modify_qp(bad, &attr, IBV_QP_STATE), EINVAL);
		REFUSED(ibv_query_qp(bad, &attr, IBV_QP_STATE, &init), EINVAL);
		REFUSED(ibv_destroy_qp(bad), EINVAL);
		REFUSED(ibv_attach_mcast(bad, &group, 0), EINVAL);
		REFUSED(ibv_detach_mcast(bad, &group, 0), EINVAL);
		NO_OBJECT(ibv_qp_to_qp_ex(bad), EINVAL);
		IS(ibv_query_qp_data_in_order(bad, IBV_WR_SEND, 0), 0);
	}
	DESTROYED(struct ibv_qp, make_qp(pd, cq, IBV_QPT_RC), ibv_destroy_qp, gone) {
		bad_send = NULL, bad_recv = NULL;
		REFUSED(ibv_post_send(gone, &send, &bad_send), EINVAL);
		REFUSED(ibv_post_recv(gone, &recv, &bad_recv), EINVAL);
		IS(bad_send == &send && bad_recv == &recv, 1);
	}
	/* Sizes that no queue pair has: nothing is made, and the attributes stay. */
	const struct ibv_qp_cap huge[] = {
		{ .max_send_wr = UINT_MAX }, { .max_recv_wr = UINT_MAX },     { .max_send_sge = UINT_MAX },
		{ .max_recv_sge = UINT_MAX }, { .max_inline_data = UINT_MAX },
	};
	for (unsigned int i = 0; i < sizeof huge / sizeof *huge; i++) {
		struct ibv_qp_init_attr with = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .cap = huge[i] };
		NO_OBJECT(ibv_create_qp(pd, &with), EINVAL);
		IS(memcmp(&with.cap, &huge[i], sizeof with.cap), 0);
	}
	/* A send queue without a peer, one that is no handle, and bits of masks that nobody knows. */
	struct ibv_qp *ud = make_qp(pd, cq, IBV_QPT_UD);
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7 };
	OK(ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	OK(ibv_modify_qp(ud, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	OK(ibv_modify_qp(ud, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	REFUSED(ibv_post_send(ud, &send, &bad_send), EINVAL);
	send.wr.ud.ah = (struct ibv_ah *)pd;
	REFUSED(ibv_post_send(ud, &send, &bad_send), EINVAL);
	IS(bad_send == &send, 1);
	REFUSED(ibv_modify_qp(ud, &attr, -1), EOPNOTSUPP);
	REFUSED(ibv_modify_qp(ud, &attr, IBV_QP_PORT), EINVAL); /* not in this state */
	IS(ud->state, IBV_QPS_RTS);
	recv.num_sge = INT_MAX;
	REFUSED(ibv_post_recv(ud, &recv, &bad_recv), EINVAL);
	recv.num_sge = INT_MIN;
	REFUSED(ibv_post_recv(ud, &recv, &bad_recv), EINVAL);
	recv.num_sge = 1;
	recv.sg_list = NULL;
	REFUSED(ibv_post_recv(ud, &recv, &bad_recv), EINVAL);
	OK(ibv_destroy_qp(ud));
	DESTROYED(struct ibv_ah, (struct ibv_ah *)ibv_create_ah(pd, &(struct ibv_ah_attr){ .is_global = 1, .port_num = 1, .grh = { .dgid = own_gid(context), .sgid_index = 1, .hop_limit = 1 } }), ibv_destroy_ah, ah) {
		REFUSED(ibv_destroy_ah(ah), EINVAL);
		REFUSED(ibv_destroy_ah(NULL), EINVAL);
		REFUSED(ibv_destroy_ah((struct ibv_ah *)pd), EINVAL);
	}
	/* Requests that are built by calls, on a queue pair that is gone. */
	struct ibv_qp_init_attr_ex ex = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
					  .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 },
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					  .send_ops_flags = IBV_QP_EX_WITH_SEND };
	struct ibv_qp *extended = MUST(ibv_create_qp_ex(context, &ex));
	struct ibv_qp_ex *qpx = MUST(ibv_qp_to_qp_ex(extended));
	OK(ibv_destroy_qp(extended));
	ibv_wr_start(qpx);
	ibv_wr_send(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	ibv_wr_abort(qpx);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
}

static void shared_queues(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq_attr attr = { .srq_limit = 1 };
	struct ibv_recv_wr recv = { 0 }, *bad_recv;
	EACH_BAD(struct ibv_srq, ibv_create_srq(pd, &init), ibv_destroy_srq, bad) {
		REFUSED(ibv_query_srq(bad, &attr), EINVAL);
		REFUSED(ibv_modify_srq(bad, &attr, IBV_SRQ_LIMIT), EINVAL);
		REFUSED(ibv_destroy_srq(bad), EINVAL);
		struct ibv_qp_init_attr with = { .send_cq = cq, .recv_cq = cq, .srq = bad, .qp_type = IBV_QPT_RC };
		if (bad)
			NO_OBJECT(ibv_create_qp(pd, &with), EINVAL);
	}
	DESTROYED(struct ibv_srq, ibv_create_srq(pd, &init), ibv_destroy_srq, gone) {
		uint32_t number;
		REFUSED(ibv_post_srq_recv(gone, &recv, &bad_recv), EINVAL);
		REFUSED(ibv_get_srq_num(gone, &number), EINVAL);
	}
	const struct ibv_srq_attr huge[] = { { .max_wr = UINT_MAX, .max_sge = 1 }, { .max_wr = 1, .max_sge = UINT_MAX } };
	for (int i = 0; i < 2; i++) {
		init.attr = huge[i];
		NO_OBJECT(ibv_create_srq(pd, &init), EINVAL);
	}
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = MUST(ibv_open_xrcd(context, &xrcd_init));
	struct verbs_context *vctx = verbs_get_ctx(context);
	REFUSED(vctx->close_xrcd(NULL), EINVAL);
	REFUSED(vctx->close_xrcd((struct ibv_xrcd *)pd), EINVAL);
	REFUSED(vctx->get_srq_num(NULL, NULL), EINVAL);
	OK(ibv_close_xrcd(xrcd));
	xrcd_init.oflags = -1;
	NO_OBJECT(ibv_open_xrcd(context, &xrcd_init), EINVAL);
	struct ibv_qp_init_attr_ex target = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	NO_OBJECT(ibv_create_qp_ex(context, &target), EINVAL);
	target.comp_mask = 0;
	NO_OBJECT(ibv_create_qp_ex(context, &target), EINVAL);
	struct ibv_qp_open_attr open_attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
					      .qp_type = IBV_QPT_XRC_RECV, .qp_num = 77, .xrcd = xrcd };
	NO_OBJECT(ibv_open_qp(context, &open_attr), EINVAL);
	open_attr.qp_type = IBV_QPT_RC;
	NO_OBJECT(ibv_open_qp(context, &open_attr), EINVAL);
}

/* In the headers of later releases. */
const char *ibv_wr_opcode_str(enum ibv_wr_opcode opcode);

/* Numbers that are none of an enumeration's. */
static void texts(void)
{
	for (int n = -3; n < 300; n++) {
		IS(ibv_node_type_str(n) != NULL && ibv_port_state_str(n) != NULL, 1);
		IS(ibv_event_type_str(n) != NULL && ibv_wc_status_str(n) != NULL && rdma_event_str(n) != NULL, 1);
		IS(ibv_wr_opcode_str(n) != NULL, 1);
		int mult = ibv_rate_to_mult(n), mbps = ibv_rate_to_mbps(n);
		IS(mult == -1 ? 0 : (int)mult_to_ibv_rate(mult) - n, 0);
		IS(mbps == -1 ? 0 : (int)mbps_to_ibv_rate(mbps) - n, 0);
	}
	IS(strcmp(ibv_wr_opcode_str(IBV_WR_RDMA_READ), "RDMA READ") == 0 && !strcmp(ibv_wr_opcode_str(99), "unknown"), 1);
	IS(mult_to_ibv_rate(-1), IBV_RATE_MAX);
	IS(mbps_to_ibv_rate(INT_MIN), IBV_RATE_MAX);
	IS(strcmp(ibv_get_sysfs_path(), "/sys"), 0);
	char byte = 'x';
	MINUS_ONE(ibv_read_sysfs_file("/proc/sys/kernel", NULL, &byte, 1), EINVAL);
	MINUS_ONE(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", NULL, 16), EINVAL);
	MINUS_ONE(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", &byte, 0), EINVAL);
	IS(byte, 'x');
	IS(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", &byte, 1), 0);
	IS(byte, 0);
	OK(ibv_dontfork_range(NULL, SIZE_MAX));
	OK(ibv_dofork_range(NULL, SIZE_MAX));
}

int main(void)
{
	context = open_first();
	pd = MUST(ibv_alloc_pd(context));
	cq = MUST(ibv_create_cq(context, 64, NULL, NULL, 0));
	mr = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	devices();
	contexts();
	domains();
	regions();
	windows();
	queues();
	queue_pairs();
	shared_queues();
	texts();
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
