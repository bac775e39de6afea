/* Data by every way to post and to poll, memory windows, and events: one device that talks to itself. */
#include <fcntl.h>
#include <stddef.h>

#include "check.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[8192] __attribute__((aligned(64)));

static struct ibv_sge sge(unsigned int at, unsigned int length)
{
	return (struct ibv_sge){ .addr = (uintptr_t)memory + at, .length = length, .lkey = mr->lkey };
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id, unsigned int at, unsigned int length)
{
	struct ibv_sge to = sge(at, length);
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &to, .num_sge = 1 }, *bad;
	OK(ibv_post_recv(qp, &wr, &bad));
}

/* Lists, immediate data, inline data gathered from memory that is not registered. */
static void lists(void)
{
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0)), *recv_cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 3, .max_recv_sge = 1,
						  .max_inline_data = 64 } };
	struct ibv_qp *qp = MUST(ibv_create_qp(pd, &init));
	connect_rc(qp, qp->qp_num, gid);
	char parts[3][8] = { "from ", "three ", "places" };
	struct ibv_sge pieces[3];
	for (int i = 0; i < 3; i++)
		pieces[i] = (struct ibv_sge){ .addr = (uintptr_t)parts[i], .length = strlen(parts[i]) };
	strcpy(memory, "registered");
	struct ibv_sge plain = sge(0, 10);
	struct ibv_send_wr wr[3] = {
		{ .wr_id = 1, .next = &wr[1], .sg_list = pieces, .num_sge = 3, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE },
		{ .wr_id = 2, .next = &wr[2], .sg_list = &plain, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .imm_data = htobe32(0x12345678) },
		{ .wr_id = 3, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htobe32(9), .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE,
		  .wr.rdma = { .remote_addr = (uintptr_t)memory, .rkey = mr->rkey } },
	}, *bad;
	for (int i = 0; i < 3; i++)
		post_recv(qp, 10 + i, 1024 * (i + 1), 64);
	OK(ibv_post_send(qp, wr, &bad));
	memset(parts, 0, sizeof parts);
	struct ibv_wc wc = completion(cq);
	IS(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == qp->qp_num, 1);
	wc = completion(recv_cq);
	IS(wc.wr_id == 10 && wc.opcode == IBV_WC_RECV && wc.byte_len == 17 && !(wc.wc_flags & IBV_WC_WITH_IMM), 1);
	IS(memcmp(memory + 1024, "from three places", 17), 0);
	wc = completion(recv_cq);
	IS(wc.wr_id == 11 && wc.byte_len == 10 && wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htobe32(0x12345678), 1);
	wc = completion(recv_cq);
	IS(wc.wr_id == 12 && wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.imm_data == htobe32(9), 1);

	/* A key that is wrong is found out when the request is carried out. */
	plain.lkey = 0xdead;
	wr[1].next = NULL;
	OK(ibv_post_send(qp, &wr[1], &bad));
	wc = completion(cq);
	IS(wc.wr_id == 2 && wc.status == IBV_WC_LOC_PROT_ERR && wc.vendor_err != 0, 1);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(ibv_destroy_cq(recv_cq));
}

/* Requests and elements that are members of packed structures, as libiscsi has them: not where their types may be. */
static void packed(void)
{
	static struct __attribute__((packed)) packed {
		char odd;
		struct ibv_recv_wr recv[2];
		struct ibv_send_wr send[3];
		char more;
		struct ibv_sge sge[6];
	} at;
#define AT(member) ((void *)((char *)&at + offsetof(struct packed, member)))
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	connect_rc(qp, qp->qp_num, gid);
	strcpy(memory, "packed");
	for (int i = 0; i < 2; i++) {
		at.sge[i] = sge(1024 * (i + 1), 64);
		struct ibv_recv_wr recv = { .wr_id = 10 + i, .sg_list = AT(sge[i]), .num_sge = 1 };
		recv.next = i ? NULL : AT(recv[1]);
		at.recv[i] = recv;
	}
	struct ibv_recv_wr *bad_recv;
	OK(ibv_post_recv(qp, AT(recv), &bad_recv));
	/* Two parts of one message; a message without any; an operation that does not exist. */
	at.sge[2] = sge(0, 3);
	at.sge[3] = sge(3, 4);
	at.send[0] = (struct ibv_send_wr){ .wr_id = 1, .next = AT(send[1]), .sg_list = AT(sge[2]), .num_sge = 2,
					   .opcode = IBV_WR_SEND };
	at.send[1] = (struct ibv_send_wr){ .wr_id = 2, .next = AT(send[2]), .opcode = IBV_WR_SEND,
					   .send_flags = IBV_SEND_SIGNALED };
	at.send[2] = (struct ibv_send_wr){ .wr_id = 3, .opcode = 77 };
	struct ibv_send_wr *bad = NULL;
	REFUSED(ibv_post_send(qp, AT(send), &bad), EINVAL);
	IS(bad == AT(send[2]), 1);
	for (int left = 3; left > 0; left--) {
		struct ibv_wc wc = completion(cq);
		IS(wc.status, IBV_WC_SUCCESS);
		IS(wc.wr_id == 2 || (wc.wr_id == 10 && wc.byte_len == 7) || (wc.wr_id == 11 && wc.byte_len == 0), 1);
	}
	IS(strcmp(memory + 1024, "packed"), 0);
	/* An operation on a local key has no elements: neither how many there are is read, nor where. */
	struct ibv_mr *bindable = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	at.send[0] = (struct ibv_send_wr){ .wr_id = 5, .opcode = IBV_WR_BIND_MW, .sg_list = (void *)8, .num_sge = 99,
					   .send_flags = IBV_SEND_SIGNALED };
	at.send[0].bind_mw.mw = mw;
	at.send[0].bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	at.send[0].bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = bindable, .addr = (uintptr_t)memory, .length = 64,
								  .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	OK(ibv_post_send(qp, AT(send[0]), &bad));
	IS(completion(cq).wr_id, 5);
	OK(ibv_dealloc_mw(mw));
	OK(ibv_dereg_mr(bindable));
	/* A list that is aligned up to one of its requests; more elements than there can be. */
	struct ibv_send_wr first = { .wr_id = 4, .next = AT(send[0]), .opcode = IBV_WR_SEND };
	at.send[0] = (struct ibv_send_wr){ .wr_id = 1, .sg_list = AT(sge[2]), .num_sge = 1 << 20, .opcode = IBV_WR_SEND };
	REFUSED(ibv_post_send(qp, &first, &bad), EINVAL);
	IS(bad == AT(send[0]), 1);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
}

static void next_of(struct ibv_cq_ex *cq, int first)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int none;
	while ((none = first ? ibv_start_poll(cq, &attr) : ibv_next_poll(cq)) == ENOENT)
		;
	IS(none, 0);
}

/* Requests that are built by calls, completions that are read field by field. */
static void extended(void)
{
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 16, .wc_flags = IBV_CREATE_CQ_SUP_WC_FLAGS & ~(IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG | IBV_WC_EX_WITH_TM_INFO) };
	struct ibv_cq_ex *cq = MUST(ibv_create_cq_ex(context, &cq_init));
	struct ibv_qp_init_attr_ex init = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .pd = pd,
					    .cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 1, .max_inline_data = 64 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_SEND_WITH_IMM | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD |
							      IBV_QP_EX_WITH_ATOMIC_WRITE | IBV_QP_EX_WITH_RDMA_READ };
	struct ibv_qp *qp = MUST(ibv_create_qp_ex(context, &init));
	struct ibv_qp_ex *qpx = MUST(ibv_qp_to_qp_ex(qp));
	connect_rc(qp, qp->qp_num, gid);
	memset(memory, 0, sizeof memory);
	post_recv(qp, 10, 1024, 64);
	uint64_t value = 40, eight = 0x1122334455667788;
	memcpy(memory + 64, &value, 8);
	struct ibv_data_buf bufs[2] = { { .addr = "in ", .length = 3 }, { .addr = "pieces", .length = 6 } };
	ibv_wr_start(qpx);
	qpx->wr_id = 1;
	qpx->wr_flags = 0;
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory + 128);
	ibv_wr_set_inline_data_list(qpx, 2, bufs);
	ibv_wr_atomic_write(qpx, mr->rkey, (uintptr_t)memory + 192, &eight);
	qpx->wr_id = 2;
	qpx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_atomic_fetch_add(qpx, mr->rkey, (uintptr_t)memory + 64, 2);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory + 72, 8);
	qpx->wr_id = 3;
	ibv_wr_send_imm(qpx, htobe32(7));
	memcpy(memory + 256, "of the list", 11);
	struct ibv_sge list[2] = { sge(256, 8), sge(264, 9) };
	ibv_wr_set_sge_list(qpx, 2, list);
	OK(ibv_wr_complete(qpx));
	int seen = 0;
	next_of(cq, 1);
	for (int i = 0; i < 3; i++) {
		if (i)
			next_of(cq, 0);
		IS(cq->status, IBV_WC_SUCCESS);
		IS(ibv_wc_read_qp_num(cq), qp->qp_num);
		IS(ibv_wc_read_completion_ts(cq) != 0 && ibv_wc_read_completion_wallclock_ns(cq) != 0, 1);
		switch (cq->wr_id) {
		case 2:
			IS(ibv_wc_read_opcode(cq), IBV_WC_FETCH_ADD);
			break;
		case 3:
			IS(ibv_wc_read_opcode(cq), IBV_WC_SEND);
			break;
		default:
			IS(cq->wr_id, 10);
			IS(ibv_wc_read_opcode(cq), IBV_WC_RECV);
			IS(ibv_wc_read_byte_len(cq), 17);
			IS(ibv_wc_read_wc_flags(cq) & IBV_WC_WITH_IMM, IBV_WC_WITH_IMM);
			IS(ibv_wc_read_imm_data(cq), htobe32(7));
		}
		seen |= 1 << cq->wr_id;
	}
	ibv_end_poll(cq);
	IS(seen, 1 << 2 | 1 << 3 | 1 << 10);
	IS(memcmp(memory + 128, "in pieces", 9), 0);
	IS(memcmp(memory + 192, &eight, 8), 0);
	value = 42;
	IS(memcmp(memory + 64, &value, 8), 0);
	value = 40;
	IS(memcmp(memory + 72, &value, 8), 0);
	IS(memcmp(memory + 1024, "of the list", 11), 0);
	/* One operation that was not asked for, one buffer too many, no memory: nothing is posted. */
	ibv_wr_start(qpx);
	ibv_wr_rdma_read(qpx, mr->rkey, (uintptr_t)memory);
	ibv_wr_send(qpx);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_inline_data(qpx, NULL, 8);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	ibv_wr_start(qpx);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	struct ibv_wc wc;
	IS(ibv_poll_cq(ibv_cq_ex_to_cq(cq), 1, &wc), 0);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
}

static void windows(void)
{
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC), *peer = make_qp(pd, cq, IBV_QPT_RC);
	connect_rc(qp, peer->qp_num, gid);
	connect_rc(peer, qp->qp_num, gid);
	struct ibv_mr *bindable = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	uint32_t before = mw->rkey;
	struct ibv_mw_bind bind = { .wr_id = 1, .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { .mr = bindable, .addr = (uintptr_t)memory + 512, .length = 64,
						   .mw_access_flags = IBV_ACCESS_REMOTE_WRITE } };
	OK(ibv_bind_mw(qp, mw, &bind));
	IS(mw->rkey != before, 1);
	struct ibv_wc wc = completion(cq);
	IS(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_BIND_MW, 1);
	REFUSED(ibv_dereg_mr(bindable), EBUSY);
	char text[] = "through a window";
	struct ibv_sge from = { .addr = (uintptr_t)text, .length = sizeof text };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE,
				  .wr.rdma = { .remote_addr = (uintptr_t)memory + 512, .rkey = mw->rkey } }, *bad;
	OK(ibv_post_send(peer, &wr, &bad));
	IS(completion(cq).status, IBV_WC_SUCCESS);
	IS(memcmp(memory + 512, text, sizeof text), 0);
	OK(ibv_dealloc_mw(mw));

	mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
	struct ibv_send_wr post = { .wr_id = 3, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED };
	post.bind_mw.mw = mw;
	post.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	post.bind_mw.bind_info = bind.bind_info;
	OK(ibv_post_send(qp, &post, &bad));
	IS(completion(cq).status, IBV_WC_SUCCESS);
	wr.wr.rdma.remote_addr = 8;
	wr.wr.rdma.rkey = post.bind_mw.rkey;
	OK(ibv_post_send(peer, &wr, &bad));
	IS(completion(cq).status, IBV_WC_SUCCESS);
	IS(memcmp(memory + 520, text, sizeof text), 0);
	struct ibv_send_wr invalidate = { .wr_id = 4, .opcode = IBV_WR_LOCAL_INV, .send_flags = IBV_SEND_SIGNALED,
					  .invalidate_rkey = post.bind_mw.rkey };
	OK(ibv_post_send(qp, &invalidate, &bad));
	wc = completion(cq);
	IS(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_LOCAL_INV, 1);
	OK(ibv_post_send(peer, &wr, &bad));
	IS(completion(cq).status, IBV_WC_REM_ACCESS_ERR);
	post.bind_mw.mw = NULL;
	REFUSED(ibv_post_send(qp, &post, &bad), EINVAL);
	OK(ibv_dealloc_mw(mw));
	OK(ibv_destroy_qp(peer));
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dereg_mr(bindable));
}

static struct ibv_async_event event_of(struct ibv_context *of)
{
	struct ibv_async_event event;
	struct pollfd wait = { .fd = of->async_fd, .events = POLLIN };
	IS(poll(&wait, 1, -1), 1);
	OK(ibv_get_async_event(of, &event));
	return event;
}

static void *destroy_it(void *qp)
{
	OK(ibv_destroy_qp(qp));
	return NULL;
}

/* Events of completion queues, and others; of two contexts each gets its own. */
static void events(void)
{
	struct ibv_context *other = open_first();
	struct ibv_async_event event;
	for (int i = 0; i < 2; i++)
		fcntl((i ? other : context)->async_fd, F_SETFL, O_NONBLOCK);
	MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
	MINUS_ONE(ibv_get_async_event(NULL, &event), EINVAL);
	MINUS_ONE(ibv_get_async_event(context, NULL), EINVAL);
	struct ibv_comp_channel *channel = MUST(ibv_create_comp_channel(other));
	struct ibv_cq *cq = MUST(ibv_create_cq(other, 16, &event, channel, 0));
	struct ibv_pd *other_pd = MUST(ibv_alloc_pd(other));
	struct ibv_mr *other_mr = MUST(ibv_reg_mr(other_pd, memory, 1024, IBV_ACCESS_LOCAL_WRITE));
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = MUST(ibv_create_srq(other_pd, &srq_init));
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 8, .max_send_sge = 1 } };
	struct ibv_qp *qp = MUST(ibv_create_qp(other_pd, &init));
	connect_rc(qp, qp->qp_num, gid);
	struct ibv_sge buffer = { .addr = (uintptr_t)memory, .length = 64, .lkey = other_mr->lkey };
	struct ibv_recv_wr recv = { .sg_list = &buffer, .num_sge = 1 }, *bad_recv;
	for (int i = 0; i < 3; i++)
		OK(ibv_post_srq_recv(srq, &recv, &bad_recv));
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	OK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT));
	OK(ibv_req_notify_cq(cq, 1));
	struct ibv_send_wr send = { .sg_list = &buffer, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SOLICITED }, *bad;
	OK(ibv_post_send(qp, &send, &bad));
	struct ibv_cq *from = NULL;
	void *from_context = NULL;
	OK(ibv_get_cq_event(channel, &from, &from_context));
	IS(from == cq && from_context == &event, 1);
	IS(completion(cq).status, IBV_WC_SUCCESS);
	ibv_ack_cq_events(cq, 1);
	IS(cq->comp_events_completed, 1);
	/* The first context asks first, and gets nothing of the other's. */
	do
		MINUS_ONE(ibv_get_async_event(context, &event), EAGAIN);
	while (poll(&(struct pollfd){ .fd = other->async_fd, .events = POLLIN }, 1, 10) == 0);
	event = event_of(other);
	while (event.event_type == IBV_EVENT_COMM_EST) {
		ibv_ack_async_event(&event);
		event = event_of(other);
	}
	IS(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq, 1);
	ibv_ack_async_event(&event);
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	OK(ibv_modify_qp(qp, &error, IBV_QP_STATE));
	event = event_of(other);
	IS(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp, 1);
	/* Who destroys it waits for the acknowledgement. */
	pthread_t thread;
	OK(pthread_create(&thread, NULL, destroy_it, qp));
	usleep(2000);
	ibv_ack_async_event(&event);
	OK(pthread_join(thread, NULL));
	OK(ibv_destroy_srq(srq));
	OK(ibv_destroy_cq(cq));
	OK(ibv_destroy_comp_channel(channel));
	OK(ibv_dereg_mr(other_mr));
	OK(ibv_dealloc_pd(other_pd));
	OK(ibv_close_device(other));
}

int main(void)
{
	context = open_first();
	pd = MUST(ibv_alloc_pd(context));
	mr = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
	gid = own_gid(context);
	lists();
	packed();
	extended();
	windows();
	events();
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
