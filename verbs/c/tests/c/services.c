/* Requests that are built by calls, for each service type, and every field of their completions: one device that talks to itself. */
#include <fcntl.h>

#include "check.h"

#define FIELDS (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
static struct ibv_cq_ex *cq;
static union ibv_gid gid;
static char memory[4096] __attribute__((aligned(64)));

static struct ibv_qp_ex *make(enum ibv_qp_type type, uint64_t operations, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .srq = srq, .qp_type = type, .pd = pd,
					    .cap = { .max_send_wr = 8, .max_recv_wr = srq ? 0 : 8, .max_send_sge = 2, .max_recv_sge = srq ? 0 : 2, .max_inline_data = 32 },
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = operations };
	struct ibv_qp *qp = MUST(ibv_create_qp_ex(context, &init));
	return MUST(ibv_qp_to_qp_ex(qp));
}

static void post_recv(struct ibv_qp *qp, uint64_t wr_id, unsigned int at)
{
	struct ibv_sge to = { .addr = (uintptr_t)memory + at, .length = 128, .lkey = mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &to, .num_sge = 1 }, *bad;
	OK(ibv_post_recv(qp, &wr, &bad));
}

/* The next completion of these, which end in success; the poll stays open. */
static void next(enum ibv_wc_opcode opcode, uint64_t wr_id)
{
	struct ibv_poll_cq_attr attr = { 0 };
	int none;
	while ((none = ibv_start_poll(cq, &attr)) == ENOENT)
		;
	OK(none);
	IS(cq->status, IBV_WC_SUCCESS);
	IS(cq->wr_id, wr_id);
	IS(ibv_wc_read_opcode(cq), opcode);
	IS(ibv_wc_read_vendor_err(cq), 0);
	IS(ibv_wc_read_slid(cq) | ibv_wc_read_dlid_path_bits(cq), 0);
}

static void done(enum ibv_wc_opcode opcode, uint64_t wr_id)
{
	next(opcode, wr_id);
	ibv_end_poll(cq);
}

static void begin(struct ibv_qp_ex *qpx, uint64_t wr_id)
{
	ibv_wr_start(qpx);
	qpx->wr_id = wr_id;
	qpx->wr_flags = IBV_SEND_SIGNALED;
}

/* The structure of queue pairs as later releases have it: one more function. */
#define LATER_FLUSH (1 << 11)
#define LATER_WR_FLUSH 352

static void flush(struct ibv_qp_ex *qpx, uint32_t rkey, uint64_t addr, size_t len, uint8_t type, uint8_t level)
{
	void (*wr_flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	memcpy(&wr_flush, (char *)qpx + LATER_WR_FLUSH, sizeof wr_flush);
	wr_flush(qpx, rkey, addr, len, type, level);
}

static void flushes(void)
{
	struct ibv_mr *flushable = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | 1 << 8)); /* FLUSH_GLOBAL */
	NO_OBJECT(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | 1 << 9), EOPNOTSUPP); /* FLUSH_PERSISTENT */
	struct ibv_qp_ex *qpx = make(IBV_QPT_RC, IBV_QP_EX_WITH_RDMA_WRITE | LATER_FLUSH, NULL);
	struct ibv_qp *qp = &qpx->qp_base;
	to_init(qp);
	struct ibv_qp_attr rights = { .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | 1 << 8 };
	OK(ibv_modify_qp(qp, &rights, IBV_QP_ACCESS_FLAGS));
	connect_from_init(qp, qp->qp_num, gid);
	for (int level = 0; level < 2; level++) {
		begin(qpx, 1);
		flush(qpx, flushable->rkey, (uintptr_t)memory, 64, 1, level);
		OK(ibv_wr_complete(qpx));
		done(8, 1); /* IBV_WC_FLUSH */
	}
	/* Neither placement nor level that there is. */
	const uint8_t wrong[][2] = { { 0, 0 }, { 4, 0 }, { 1, 2 } };
	for (int i = 0; i < 3; i++) {
		begin(qpx, 1);
		flush(qpx, flushable->rkey, (uintptr_t)memory, 64, wrong[i][0], wrong[i][1]);
		REFUSED(ibv_wr_complete(qpx), EINVAL);
	}
	begin(qpx, 1);
	flush(qpx, flushable->rkey, (uintptr_t)memory, SIZE_MAX, 1, 0);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	OK(ibv_destroy_qp(qp));
	OK(ibv_dereg_mr(flushable));
}

static void reliable(void)
{
	struct ibv_qp_ex *qpx = make(IBV_QPT_RC, IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM |
							 IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV | IBV_QP_EX_WITH_SEND_WITH_INV, NULL);
	struct ibv_qp *qp = &qpx->qp_base;
	connect_rc(qp, qp->qp_num, gid);
	uint64_t value = 40, other = 41;

	/* COMPARE&SWAP that swaps, and one that does not. */
	memcpy(memory, &value, 8);
	for (int i = 0; i < 2; i++) {
		begin(qpx, 1);
		ibv_wr_atomic_cmp_swp(qpx, mr->rkey, (uintptr_t)memory, 40, 41);
		ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory + 8, 8);
		OK(ibv_wr_complete(qpx));
		done(IBV_WC_COMP_SWAP, 1);
		IS(memcmp(memory, &other, 8), 0);
		IS(memcmp(memory + 8, i ? &other : &value, 8), 0);
	}
	begin(qpx, 2);
	ibv_wr_rdma_read(qpx, mr->rkey, (uintptr_t)memory);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory + 16, 8);
	OK(ibv_wr_complete(qpx));
	next(IBV_WC_RDMA_READ, 2);
	IS(ibv_wc_read_byte_len(cq), 8);
	ibv_end_poll(cq);
	IS(memcmp(memory + 16, &other, 8), 0);

	post_recv(qp, 10, 1024);
	begin(qpx, 3);
	ibv_wr_rdma_write_imm(qpx, mr->rkey, (uintptr_t)memory + 64, htobe32(0xabcdef01));
	ibv_wr_set_inline_data(qpx, "written", 8);
	OK(ibv_wr_complete(qpx));
	for (int i = 0; i < 2; i++) {
		struct ibv_poll_cq_attr attr = { 0 };
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		IS(cq->status, IBV_WC_SUCCESS);
		if (cq->wr_id == 10) {
			IS(ibv_wc_read_opcode(cq), IBV_WC_RECV_RDMA_WITH_IMM);
			IS(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_IMM);
			IS(ibv_wc_read_imm_data(cq), htobe32(0xabcdef01));
			IS(ibv_wc_read_byte_len(cq), 8);
		} else {
			IS(cq->wr_id == 3 && ibv_wc_read_opcode(cq) == IBV_WC_RDMA_WRITE, 1);
		}
		IS(ibv_wc_read_qp_num(cq), qp->qp_num);
		ibv_end_poll(cq);
	}
	IS(strcmp(memory + 64, "written"), 0);

	/* A window is bound, its key taken away by the peer, bound again, and taken away here. */
	struct ibv_mr *bindable = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	struct ibv_mw_bind_info info = { .mr = bindable, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	begin(qpx, 4);
	ibv_wr_bind_mw(qpx, mw, rkey, &info);
	OK(ibv_wr_complete(qpx));
	done(IBV_WC_BIND_MW, 4);
	post_recv(qp, 11, 1024);
	begin(qpx, 5);
	ibv_wr_send_inv(qpx, rkey);
	ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory, 8);
	OK(ibv_wr_complete(qpx));
	for (int i = 0; i < 2; i++) {
		struct ibv_poll_cq_attr attr = { 0 };
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		IS(cq->status, IBV_WC_SUCCESS);
		if (cq->wr_id == 11) {
			IS(ibv_wc_read_wc_flags(cq), IBV_WC_WITH_INV);
			IS(ibv_wc_read_invalidated_rkey(cq), rkey);
		}
		ibv_end_poll(cq);
	}
	rkey = ibv_inc_rkey(rkey);
	begin(qpx, 6);
	ibv_wr_bind_mw(qpx, mw, rkey, &info);
	ibv_wr_local_inv(qpx, rkey);
	OK(ibv_wr_complete(qpx));
	done(IBV_WC_BIND_MW, 6);
	done(IBV_WC_LOCAL_INV, 6);
	begin(qpx, 7);
	ibv_wr_bind_mw(qpx, NULL, rkey, &info);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	begin(qpx, 7);
	ibv_wr_bind_mw(qpx, mw, rkey, NULL);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	OK(ibv_dealloc_mw(mw));
	OK(ibv_dereg_mr(bindable));
	OK(ibv_destroy_qp(qp));
}

static void datagrams(void)
{
	struct ibv_qp_ex *qpx = make(IBV_QPT_UD, IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM, NULL);
	struct ibv_qp *qp = &qpx->qp_base;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x1234 };
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	struct ibv_ah_attr to = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 4 } };
	struct ibv_ah *ah = MUST(ibv_create_ah(pd, &to));
	post_recv(qp, 10, 1024);
	begin(qpx, 1);
	ibv_wr_send_imm(qpx, htobe32(5));
	ibv_wr_set_ud_addr(qpx, ah, qp->qp_num, 0x1234);
	ibv_wr_set_inline_data(qpx, "datagram", 9);
	OK(ibv_wr_complete(qpx));
	for (int i = 0; i < 2; i++) {
		struct ibv_poll_cq_attr poll_attr = { 0 };
		while (ibv_start_poll(cq, &poll_attr) == ENOENT)
			;
		IS(cq->status, IBV_WC_SUCCESS);
		if (cq->wr_id == 10) {
			IS(ibv_wc_read_byte_len(cq), 40 + 9);
			IS(ibv_wc_read_src_qp(cq), qp->qp_num);
			IS(ibv_wc_read_wc_flags(cq), IBV_WC_GRH | IBV_WC_WITH_IMM);
			/* The priority of its VLAN tag, of which it has none. */
			IS(ibv_wc_read_sl(cq), 0);
		}
		ibv_end_poll(cq);
	}
	IS(strcmp(memory + 1024 + 40, "datagram"), 0);
	/* Nobody is named, or something that is no handle: nothing is posted. */
	begin(qpx, 2);
	ibv_wr_send(qpx);
	ibv_wr_set_inline_data(qpx, "datagram", 9);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	begin(qpx, 2);
	ibv_wr_send(qpx);
	ibv_wr_set_ud_addr(qpx, (struct ibv_ah *)pd, qp->qp_num, 0x1234);
	REFUSED(ibv_wr_complete(qpx), EINVAL);
	OK(ibv_destroy_ah(ah));
	OK(ibv_destroy_qp(qp));
}

/* An initiator sends to a shared receive queue, by way of a target of the same process. */
static void extended_reliable(void)
{
	struct ibv_xrcd_init_attr xrcd_init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = MUST(ibv_open_xrcd(context, &xrcd_init));
	struct ibv_srq_init_attr_ex srq_init = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd,
						 .cq = ibv_cq_ex_to_cq(cq),
						 .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ };
	struct ibv_srq *srq = MUST(ibv_create_srq_ex(context, &srq_init));
	uint32_t number;
	OK(ibv_get_srq_num(srq, &number));
	struct ibv_qp_init_attr_ex target_init = { .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd };
	struct ibv_qp *target = MUST(ibv_create_qp_ex(context, &target_init));
	struct ibv_qp_ex *qpx = make(IBV_QPT_XRC_SEND, IBV_QP_EX_WITH_SEND, NULL);
	struct ibv_qp *qp = &qpx->qp_base;
	connect_rc(target, qp->qp_num, gid);
	connect_rc(qp, target->qp_num, gid);
	struct ibv_sge buffer = { .addr = (uintptr_t)memory + 1024, .length = 64, .lkey = mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 10, .sg_list = &buffer, .num_sge = 1 }, *bad_recv;
	OK(ibv_post_srq_recv(srq, &recv, &bad_recv));
	begin(qpx, 1);
	ibv_wr_send(qpx);
	ibv_wr_set_xrc_srqn(qpx, number);
	ibv_wr_set_inline_data(qpx, "to a shared queue", 18);
	OK(ibv_wr_complete(qpx));
	for (int i = 0; i < 2; i++) {
		struct ibv_poll_cq_attr attr = { 0 };
		while (ibv_start_poll(cq, &attr) == ENOENT)
			;
		IS(cq->status, IBV_WC_SUCCESS);
		IS(cq->wr_id == 1 || (cq->wr_id == 10 && ibv_wc_read_byte_len(cq) == 18), 1);
		ibv_end_poll(cq);
	}
	IS(strcmp(memory + 1024, "to a shared queue"), 0);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_qp(target));
	OK(ibv_destroy_srq(srq));
	OK(ibv_close_xrcd(xrcd));
}

int main(void)
{
	context = open_first();
	pd = MUST(ibv_alloc_pd(context));
	mr = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC));
	struct ibv_cq_init_attr_ex init = { .cqe = 32, .wc_flags = FIELDS };
	cq = MUST(ibv_create_cq_ex(context, &init));
	gid = own_gid(context);
	reliable();
	flushes();
	datagrams();
	extended_reliable();
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	OK(ibv_dereg_mr(mr));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
