/*
 * Fields that libibverbs, librdmacm and the kernel behind them do not read in a situation: programs leave them as they find them. In
 * every row the whole structure is garbage, then the fields that are read get their values, and the call must succeed.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <rdma/rdma_verbs.h>

#include "check.h"

/* As a pointer it is mapped nowhere, as a number it is beyond every limit, and it has every kind of unknown bit. */
#define GARBAGE 0xa5
#define FILL(structure) memset(&(structure), GARBAGE, sizeof(structure))
#define NOWHERE ((void *)0xa5a5a5a5a5a5a5a5)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static union ibv_gid gid;
static char memory[4096] __attribute__((aligned(4096)));

static const struct ibv_qp_cap sizes = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = 64 };
#define ALL_RIGHTS (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* ------------------------------------------------------------- objects */

static struct ibv_srq *shared_queue(void)
{
	struct ibv_srq_init_attr init;
	FILL(init);
	init.attr.max_wr = 4;
	init.attr.max_sge = 1; /* and no limit: it is armed by ibv_modify_srq */
	return MUST(ibv_create_srq(pd, &init));
}

static void a_shared_receive_queue(void)
{
	struct ibv_srq *srq = shared_queue();
	struct ibv_srq_attr attr;
	FILL(attr);
	attr.srq_limit = 2;
	OK(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT));
	FILL(attr);
	attr.max_wr = 8;
	OK(ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR));
	OK(ibv_destroy_srq(srq));
}

static void an_extended_shared_receive_queue(void)
{
	const uint32_t masks[] = { IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_TYPE };
	for (int i = 0; i < 2; i++) {
		struct ibv_srq_init_attr_ex init;
		FILL(init);
		init.attr.max_wr = 4;
		init.attr.max_sge = 1;
		init.comp_mask = masks[i];
		init.pd = pd;
		if (i)
			init.srq_type = IBV_SRQT_BASIC;
		OK(ibv_destroy_srq(MUST(verbs_get_ctx(context)->create_srq_ex(context, &init))));
	}
}

static void a_queue_pair_with_a_shared_receive_queue(void)
{
	struct ibv_qp_init_attr init;
	FILL(init);
	init.send_cq = init.recv_cq = cq;
	init.srq = shared_queue();
	init.cap.max_send_wr = init.cap.max_send_sge = 1;
	init.cap.max_inline_data = 0; /* and no sizes of a receive queue */
	init.qp_type = IBV_QPT_RC;
	struct ibv_srq *srq = init.srq;
	OK(ibv_destroy_qp(MUST(ibv_create_qp(pd, &init))));
	OK(ibv_destroy_srq(srq));
}

static void an_extended_queue_pair(void)
{
	struct ibv_qp_init_attr_ex init;
	FILL(init);
	init.send_cq = init.recv_cq = cq;
	init.srq = NULL;
	init.cap = sizes;
	init.qp_type = IBV_QPT_UD;
	init.sq_sig_all = 0;
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	init.pd = pd;
	OK(ibv_destroy_qp(MUST(verbs_get_ctx(context)->create_qp_ex(context, &init))));
}

static struct ibv_qp *sender_of_xrc(void)
{
	struct ibv_qp_init_attr_ex init;
	FILL(init);
	init.send_cq = cq; /* it receives nothing: no queue for that, of any kind */
	init.cap.max_send_wr = 4;
	init.cap.max_send_sge = 1;
	init.cap.max_inline_data = 0;
	init.qp_type = IBV_QPT_XRC_SEND;
	init.sq_sig_all = 0;
	init.comp_mask = IBV_QP_INIT_ATTR_PD;
	init.pd = pd;
	return MUST(verbs_get_ctx(context)->create_qp_ex(context, &init));
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr open = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_xrcd *xrcd = MUST(ibv_open_xrcd(context, &open));
	struct ibv_qp_init_attr_ex init;
	FILL(init);
	init.qp_context = NULL;
	init.qp_type = IBV_QPT_XRC_RECV;
	init.comp_mask = IBV_QP_INIT_ATTR_XRCD;
	init.xrcd = xrcd;
	struct ibv_qp *target = MUST(verbs_get_ctx(context)->create_qp_ex(context, &init));
	struct ibv_qp_open_attr again;
	FILL(again);
	again.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	again.qp_num = target->qp_num;
	again.xrcd = xrcd;
	again.qp_type = IBV_QPT_XRC_RECV;
	struct ibv_qp *opened = MUST(verbs_get_ctx(context)->open_qp(context, &again));
	IS(opened->qp_context == NULL, 1);
	OK(ibv_destroy_qp(opened));
	OK(ibv_destroy_qp(target));
	OK(ibv_destroy_qp(sender_of_xrc()));
	OK(ibv_close_xrcd(xrcd));
}

static void an_extended_completion_queue(void)
{
	struct ibv_cq_init_attr_ex init;
	FILL(init);
	init.cqe = 4;
	init.channel = NULL;
	init.comp_vector = 0;
	init.wc_flags = 0;
	init.comp_mask = 0;
	struct ibv_cq_ex *made = MUST(verbs_get_ctx(context)->create_cq_ex(context, &init));
	OK(ibv_destroy_cq(ibv_cq_ex_to_cq(made)));
}

static void a_parent_domain(void)
{
	struct ibv_parent_domain_init_attr init;
	FILL(init);
	init.pd = pd;
	init.td = NULL;
	init.comp_mask = 0;
	OK(ibv_dealloc_pd(MUST(ibv_alloc_parent_domain(context, &init))));
}

static void a_region_that_is_registered_again(void)
{
	struct ibv_mr *region = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
	OK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_ACCESS, NOWHERE, NOWHERE, (size_t)NOWHERE, ALL_RIGHTS));
	OK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_PD, pd, NOWHERE, (size_t)NOWHERE, 0));
	OK(ibv_rereg_mr(region, IBV_REREG_MR_CHANGE_TRANSLATION, NOWHERE, memory, 64, 0));
	OK(ibv_dereg_mr(region));
}

/* ------------------------------------------------------------- queue pairs and paths */

static struct ibv_ah_attr path(void)
{
	struct ibv_ah_attr path;
	FILL(path);
	path.is_global = 1; /* of RoCE: no LID, no bits of one, and no rate; the flow label has 20 bits, the service level 3 */
	path.port_num = 1;
	path.grh.dgid = gid;
	path.grh.sgid_index = 1;
	return path;
}

static void address_handles(void)
{
	struct ibv_ah_attr attr = path();
	OK(ibv_destroy_ah(MUST(ibv_create_ah(pd, &attr))));
	/* From a completion: what says where the datagram came from, and nothing else of it. */
	struct ibv_wc wc;
	union {
		struct ibv_grh v6;
		struct { unsigned char any[20], v4[20]; };
	} header;
	FILL(wc);
	wc.wc_flags = IBV_WC_GRH;
	wc.sl = 0;
	FILL(header);
	const unsigned char v4[20] = { 0x45, 0, 0, 60, 0, 0, 0x40, 0, 64, 17, 0, 0, gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15],
				       gid.raw[12], gid.raw[13], gid.raw[14], gid.raw[15] };
	memcpy(header.v4, v4, 20);
	OK(ibv_init_ah_from_wc(context, 1, &wc, &header.v6, &attr));
	IS(memcmp(&attr.grh.dgid, &gid, 16), 0);
	OK(ibv_destroy_ah(MUST(ibv_create_ah_from_wc(pd, &wc, &header.v6, 1))));
}

/* Moves a queue pair on with the attributes of the mask. */
#define MOVE(qp, attr, mask, ...)                              \
	do {                                                   \
		FILL(attr);                                    \
		__VA_ARGS__;                                   \
		OK(ibv_modify_qp(qp, &(attr), IBV_QP_STATE | (mask))); \
	} while (0)

static void to_rts(struct ibv_qp *qp, uint32_t peer)
{
	const int connected = qp->qp_type != IBV_QPT_UD, answers = qp->qp_type == IBV_QPT_RC, reads = answers || qp->qp_type == IBV_QPT_XRC_SEND;
	struct ibv_qp_attr attr;
	MOVE(qp, attr, IBV_QP_PKEY_INDEX | IBV_QP_PORT | (connected ? IBV_QP_ACCESS_FLAGS : IBV_QP_QKEY),
	     (attr.qp_state = IBV_QPS_INIT, attr.port_num = 1, attr.pkey_index = 0, connected ? (attr.qp_access_flags = ALL_RIGHTS) : (attr.qkey = 7)));
	if (connected)
		MOVE(qp, attr, IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | (answers ? IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER : 0),
		     (attr.qp_state = IBV_QPS_RTR, attr.ah_attr = path(), attr.path_mtu = IBV_MTU_1024, attr.dest_qp_num = peer, attr.rq_psn = 3,
		      attr.max_dest_rd_atomic = 4, attr.min_rnr_timer = 12));
	else
		MOVE(qp, attr, 0, attr.qp_state = IBV_QPS_RTR);
	MOVE(qp, attr, IBV_QP_SQ_PSN | (reads ? IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC : 0),
	     (attr.qp_state = IBV_QPS_RTS, attr.sq_psn = 3, attr.timeout = 14, attr.retry_cnt = 7, attr.rnr_retry = 7, attr.max_rd_atomic = 4));
	IS(qp->state, IBV_QPS_RTS);
}

static void states(void)
{
	const enum ibv_qp_type types[] = { IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD };
	struct ibv_qp_attr attr;
	for (int i = 0; i < 3; i++) {
		struct ibv_qp *qp = make_qp(pd, cq, types[i]);
		to_rts(qp, qp->qp_num);
		MOVE(qp, attr, 0, attr.qp_state = IBV_QPS_SQD);
		MOVE(qp, attr, 0, attr.qp_state = IBV_QPS_ERR);
		MOVE(qp, attr, 0, attr.qp_state = IBV_QPS_RESET);
		OK(ibv_destroy_qp(qp));
	}
	struct ibv_qp *qp = sender_of_xrc();
	to_rts(qp, 9);
	OK(ibv_destroy_qp(qp));
}

/* ------------------------------------------------------------- requests */

static struct ibv_qp *to_itself(enum ibv_qp_type type)
{
	struct ibv_qp *qp = make_qp(pd, cq, type);
	to_rts(qp, qp->qp_num);
	return qp;
}

static void receive(struct ibv_qp *qp)
{
	struct ibv_sge sge = { .addr = (uintptr_t)memory + 2048, .length = 1024, .lkey = mr->lkey };
	struct ibv_recv_wr wr, *bad;
	FILL(wr);
	wr.next = NULL;
	wr.sg_list = &sge;
	wr.num_sge = 1;
	OK(ibv_post_recv(qp, &wr, &bad));
}

/* Posts it, and waits for as many completions as it has here. */
static void posted(int line, struct ibv_qp *qp, struct ibv_send_wr *wr, int completions)
{
	struct ibv_send_wr *bad;
	int error = ibv_post_send(qp, wr, &bad);
	if (error)
		return say(line, "ibv_post_send", error, 0);
	while (completions-- > 0) {
		enum ibv_wc_status status = completion(cq).status;
		if (status != IBV_WC_SUCCESS)
			say(line, ibv_wc_status_str(status), status, IBV_WC_SUCCESS);
	}
}

/* A request that is garbage but for its operation. Flags that its operation or service has no use for, and unknown ones, are set. */
static struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *list, int elements)
{
	struct ibv_send_wr wr;
	FILL(wr);
	wr.next = NULL;
	wr.sg_list = list;
	wr.num_sge = elements;
	wr.opcode = opcode;
	wr.send_flags = ~0U & ~IBV_SEND_INLINE;
	return wr;
}

static void requests_on_rc(void)
{
	struct ibv_qp *qp = to_itself(IBV_QPT_RC);
	struct ibv_sge word = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_sge sparse[3] = { { .addr = ~0ULL, .length = 0, .lkey = ~0U }, word, { .addr = ~0ULL, .length = 0, .lkey = ~0U } };
	struct ibv_sge no_key = { .addr = (uintptr_t)memory, .length = 8, .lkey = ~0U };
	struct ibv_send_wr wr;

	/* An empty list is nowhere, as is the memory of an empty element; inline data needs no key. */
	const enum ibv_wr_opcode sends[] = { IBV_WR_SEND, IBV_WR_SEND_WITH_IMM };
	for (int i = 0; i < 2; i++) {
		receive(qp);
		wr = request(sends[i], NOWHERE, 0);
		posted(__LINE__, qp, &wr, 2);
		receive(qp);
		wr = request(sends[i], sparse, 3);
		posted(__LINE__, qp, &wr, 2);
		receive(qp);
		wr = request(sends[i], &no_key, 1);
		wr.send_flags = ~0U;
		posted(__LINE__, qp, &wr, 2);
	}
	const enum ibv_wr_opcode copies[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ };
	for (int i = 0; i < 2; i++) {
		wr = request(copies[i], sparse, 3);
		wr.wr.rdma.remote_addr = (uintptr_t)memory + 64;
		wr.wr.rdma.rkey = mr->rkey;
		posted(__LINE__, qp, &wr, 1);
		/* Of no bytes: neither address nor key. */
		wr = request(copies[i], NOWHERE, 0);
		posted(__LINE__, qp, &wr, 1);
	}
	const enum ibv_wr_opcode atomics[] = { IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD };
	for (int i = 0; i < 2; i++) {
		wr = request(atomics[i], &word, 1);
		wr.wr.atomic.remote_addr = (uintptr_t)memory + 128;
		wr.wr.atomic.rkey = mr->rkey;
		posted(__LINE__, qp, &wr, 1);
	}

	/* Operations on local keys have no data, and so no list. */
	struct ibv_mr *bindable = MUST(ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND));
	struct ibv_mw *mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_2));
	wr = request(IBV_WR_BIND_MW, NOWHERE, (int)0xa5a5a5a5);
	wr.send_flags = ~0U;
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = bindable, .addr = (uintptr_t)memory, .length = 64, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE };
	posted(__LINE__, qp, &wr, 1);
	uint32_t key = wr.bind_mw.rkey;
	wr = request(IBV_WR_LOCAL_INV, NOWHERE, (int)0xa5a5a5a5);
	wr.send_flags = ~0U;
	wr.invalidate_rkey = key;
	posted(__LINE__, qp, &wr, 1);
	OK(ibv_dealloc_mw(mw));

	/* A bind of no bytes grants nothing: where they are, and what may be done with them, is not asked. */
	mw = MUST(ibv_alloc_mw(pd, IBV_MW_TYPE_1));
	struct ibv_mw_bind bind;
	FILL(bind);
	bind.send_flags = ~0U;
	bind.bind_info.mr = bindable;
	bind.bind_info.length = 0;
	OK(ibv_bind_mw(qp, mw, &bind));
	IS(completion(cq).status, IBV_WC_SUCCESS);
	bind.bind_info.mr = NULL;
	bind.bind_info.addr = 0;
	bind.bind_info.mw_access_flags = ALL_RIGHTS;
	OK(ibv_bind_mw(qp, mw, &bind));
	IS(completion(cq).status, IBV_WC_SUCCESS);
	OK(ibv_dealloc_mw(mw));
	OK(ibv_dereg_mr(bindable));
	OK(ibv_destroy_qp(qp));
}

static void requests_on_uc_and_ud(void)
{
	struct ibv_sge word = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
	struct ibv_qp *qp = to_itself(IBV_QPT_UC);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &word, 1);
	receive(qp);
	posted(__LINE__, qp, &wr, 2);
	OK(ibv_destroy_qp(qp));

	qp = to_itself(IBV_QPT_UD);
	struct ibv_ah_attr to = path();
	struct ibv_ah *ah = MUST(ibv_create_ah(pd, &to));
	wr = request(IBV_WR_SEND, &word, 1);
	wr.wr.ud.ah = ah;
	wr.wr.ud.remote_qpn = qp->qp_num;
	wr.wr.ud.remote_qkey = 7;
	receive(qp);
	posted(__LINE__, qp, &wr, 2);
	OK(ibv_destroy_ah(ah));
	OK(ibv_destroy_qp(qp));
}

/* Groups of either IP version, by an address of the other one too: a group has no LID, and NICs compare no versions. */
static void groups(void)
{
	struct ibv_qp *qp = to_itself(IBV_QPT_UD);
	const union ibv_gid of_v4 = { .raw = { [10] = 0xff, [11] = 0xff, [12] = 239, [13] = 7, [14] = 7, [15] = 9 } };
	const union ibv_gid of_v6 = { .raw = { 0xff, 1, [5] = 2, [6] = 201, [7] = 133 } };
	for (int i = 0; i < 4; i++) {
		const union ibv_gid *group = i & 1 ? &of_v6 : &of_v4;
		struct ibv_ah_attr to = path();
		to.grh.dgid = *group;
		to.grh.sgid_index = i >> 1; /* 0 is IPv6, 1 is IPv4 */
		to.grh.hop_limit = 1;
		struct ibv_ah *ah = MUST(ibv_create_ah(pd, &to));
		struct ibv_sge word = { .addr = (uintptr_t)memory, .length = 8, .lkey = mr->lkey };
		struct ibv_send_wr wr = request(IBV_WR_SEND, &word, 1);
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = 0xffffff;
		wr.wr.ud.remote_qkey = 7;
		OK(ibv_attach_mcast(qp, group, GARBAGE << 8 | GARBAGE));
		receive(qp);
		posted(__LINE__, qp, &wr, 2);
		OK(ibv_detach_mcast(qp, group, GARBAGE));
		OK(ibv_destroy_ah(ah));
	}
	/* Of a unicast path no packet can be made, as on a NIC. */
	struct ibv_ah_attr to = path();
	to.grh.sgid_index = 0;
	NO_OBJECT(ibv_create_ah(pd, &to), EINVAL);
	OK(ibv_destroy_qp(qp));
}

static void requests_to_receive(void)
{
	struct ibv_qp *qp = to_itself(IBV_QPT_RC);
	struct ibv_srq *srq = shared_queue();
	struct ibv_recv_wr wr, *bad;
	FILL(wr);
	wr.next = NULL;
	wr.num_sge = 0;
	OK(ibv_post_recv(qp, &wr, &bad));
	OK(ibv_post_srq_recv(srq, &wr, &bad));
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_srq(srq));
}

static void requests_by_calls(void)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq, .recv_cq = cq, .cap = sizes, .qp_type = IBV_QPT_RC, .pd = pd,
					    .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
					    .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ };
	struct ibv_qp *qp = MUST(ibv_create_qp_ex(context, &init));
	struct ibv_qp_ex *qpx = MUST(ibv_qp_to_qp_ex(qp));
	to_rts(qp, qp->qp_num);
	for (int i = 0; i < 3; i++) {
		ibv_wr_start(qpx);
		qpx->wr_id = 1;
		qpx->wr_flags = ~0U; /* how the data is given says whether it is inline */
		if (i == 1)
			ibv_wr_rdma_read(qpx, mr->rkey, (uintptr_t)memory);
		else
			ibv_wr_rdma_write(qpx, mr->rkey, (uintptr_t)memory);
		if (i == 2)
			ibv_wr_set_sge_list(qpx, 0, NOWHERE);
		else
			ibv_wr_set_sge(qpx, mr->lkey, (uintptr_t)memory + 64, 8);
		OK(ibv_wr_complete(qpx));
		IS(completion(cq).status, IBV_WC_SUCCESS);
	}
	OK(ibv_destroy_qp(qp));
}

/* ------------------------------------------------------------- connection management */

static struct sockaddr_in in(int port)
{
	struct sockaddr_in a;
	FILL(a); /* with bytes behind it that mean nothing */
	a.sin_family = AF_INET;
	a.sin_port = htons(port);
	memcpy(&a.sin_addr, gid.raw + 12, 4);
	return a;
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	OK(rdma_get_cm_event(channel, &event));
	if (event->event != type) {
		fprintf(stderr, "%s and not %s, status %d\n", rdma_event_str(event->event), rdma_event_str(type), event->status);
		exit(1);
	}
	return event;
}

static struct rdma_cm_id *identifier(struct rdma_event_channel *channel, enum rdma_port_space ps, enum ibv_qp_type type)
{
	struct rdma_cm_id *id;
	if (type == IBV_QPT_UC) {
		/* Only an endpoint is of another type than its port space; its channel is its own at first. */
		struct rdma_addrinfo info;
		FILL(info);
		info.ai_flags = RAI_PASSIVE;
		info.ai_port_space = ps;
		info.ai_qp_type = type;
		info.ai_src_len = 0;
		OK(rdma_create_ep(&id, &info, NULL, NULL));
		OK(rdma_migrate_id(id, channel));
	} else {
		OK(rdma_create_id(channel, &id, NULL, ps));
	}
	return id;
}

static struct ibv_qp *own_qp(enum ibv_qp_type type)
{
	return make_qp(pd, cq, type);
}

/* Parameters of which nothing is set. */
static struct rdma_conn_param unset(void)
{
	struct rdma_conn_param param;
	FILL(param);
	param.private_data_len = 0;
	return param;
}

static void give_qp(struct rdma_cm_id *id, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr_ex init;
	FILL(init);
	init.send_cq = init.recv_cq = NULL;
	init.srq = NULL;
	init.cap = sizes;
	init.qp_type = type;
	init.sq_sig_all = 0;
	init.comp_mask = 0; /* the identifier's own domain */
	OK(rdma_create_qp_ex(id, &init));
}

/* One connection, with the queue pairs that the identifiers make, or with the program's own. */
static void connects(enum rdma_port_space ps, enum ibv_qp_type type, int own)
{
	struct rdma_event_channel *of_server = rdma_create_event_channel(), *of_client = rdma_create_event_channel();
	struct rdma_cm_id *listen = identifier(of_server, ps, type), *client = identifier(of_client, ps, type), *server;
	struct sockaddr_in any = in(0);
	OK(rdma_bind_addr(listen, (struct sockaddr *)&any));
	OK(rdma_listen(listen, 1));
	struct sockaddr_in to = in(ntohs(rdma_get_src_port(listen)));
	OK(rdma_resolve_addr(client, NULL, (struct sockaddr *)&to, 60000));
	rdma_ack_cm_event(next_event(of_client, RDMA_CM_EVENT_ADDR_RESOLVED));
	OK(rdma_resolve_route(client, 60000));
	rdma_ack_cm_event(next_event(of_client, RDMA_CM_EVENT_ROUTE_RESOLVED));

	struct rdma_conn_param param = unset();
	struct ibv_qp *qps[2] = { NULL, NULL };
	if (own)
		for (int i = 0; i < 2; i++)
			qps[i] = own_qp(type);
	else
		give_qp(client, type);
	if (type == IBV_QPT_RC)
		param.responder_resources = param.initiator_depth = 3;
	if (own && type != IBV_QPT_UD)
		param.qp_num = qps[0]->qp_num | 0xa5000000; /* of a number of 24 bits */
	if (!own) {
		param.private_data = NULL; /* and a length */
		param.private_data_len = GARBAGE;
	}
	OK(rdma_connect(client, &param));

	struct rdma_cm_event *request = next_event(of_server, RDMA_CM_EVENT_CONNECT_REQUEST);
	server = request->id;
	if (type != IBV_QPT_UD)
		IS(request->param.conn.qp_num, own ? qps[0]->qp_num : client->qp->qp_num);
	OK(rdma_ack_cm_event(request));
	param = unset();
	if (own)
		param.qp_num = qps[1]->qp_num | 0xa5000000;
	else
		give_qp(server, type);
	if (type == IBV_QPT_RC)
		param.responder_resources = param.initiator_depth = 3;
	OK(rdma_accept(server, &param));

	const int responds = own && type != IBV_QPT_UD;
	struct rdma_cm_event *done = next_event(of_client, responds ? RDMA_CM_EVENT_CONNECT_RESPONSE : RDMA_CM_EVENT_ESTABLISHED);
	const uint32_t qpn = own ? qps[1]->qp_num : server->qp->qp_num;
	if (type == IBV_QPT_UD)
		IS(done->param.ud.qp_num, qpn);
	else
		IS(done->param.conn.qp_num, qpn);
	OK(rdma_ack_cm_event(done));
	if (responds) {
		/* Of the attributes only the state is read, and the rest is written. */
		for (enum ibv_qp_state state = IBV_QPS_INIT; state <= IBV_QPS_RTS; state++) {
			struct ibv_qp_attr attr;
			int mask;
			FILL(attr);
			FILL(mask);
			attr.qp_state = state;
			OK(rdma_init_qp_attr(client, &attr, &mask));
			OK(ibv_modify_qp(qps[0], &attr, mask));
		}
	}
	OK(rdma_destroy_id(client));
	OK(rdma_destroy_id(server));
	OK(rdma_destroy_id(listen));
	for (int i = 0; i < 2; i++)
		if (qps[i])
			OK(ibv_destroy_qp(qps[i]));
	rdma_destroy_event_channel(of_server);
	rdma_destroy_event_channel(of_client);
}

static void connections(void)
{
	connects(RDMA_PS_TCP, IBV_QPT_RC, 0);
	connects(RDMA_PS_TCP, IBV_QPT_RC, 1);
	connects(RDMA_PS_UDP, IBV_QPT_UD, 0);
	connects(RDMA_PS_UDP, IBV_QPT_UD, 1);
	connects(RDMA_PS_IB, IBV_QPT_UC, 0);
	connects(RDMA_PS_IB, IBV_QPT_UC, 1);
}

static void addresses(void)
{
	struct rdma_addrinfo hints, *info = NULL;
	FILL(hints);
	hints.ai_flags = RAI_NUMERICHOST;
	hints.ai_family = AF_INET;
	hints.ai_qp_type = IBV_QPT_RC;
	hints.ai_port_space = RDMA_PS_TCP;
	hints.ai_src_len = 0; /* and wherever the address is; the destination is the node */
	OK(rdma_getaddrinfo("10.77.0.1", "7", &hints, &info));
	IS(info->ai_src_addr == NULL && info->ai_dst_len == sizeof(struct sockaddr_in), 1);
	rdma_freeaddrinfo(info);
	hints.ai_dst_len = 0;
	info = NULL;
	OK(rdma_getaddrinfo(NULL, NULL, &hints, &info));
	IS(info->ai_src_addr == NULL && info->ai_dst_addr == NULL, 1);
	rdma_freeaddrinfo(info);
}

static void an_endpoint(void)
{
	struct rdma_addrinfo info;
	struct sockaddr_in to = in(7);
	FILL(info);
	info.ai_flags = 0;
	info.ai_port_space = RDMA_PS_TCP;
	info.ai_qp_type = IBV_QPT_RC;
	info.ai_src_len = info.ai_route_len = info.ai_connect_len = 0;
	info.ai_dst_len = sizeof to;
	info.ai_dst_addr = (struct sockaddr *)&to;
	struct ibv_qp_init_attr init;
	FILL(init);
	init.send_cq = init.recv_cq = NULL;
	init.srq = NULL;
	init.cap = sizes; /* and its type is the endpoint's */
	init.sq_sig_all = 0;
	struct rdma_cm_id *id;
	OK(rdma_create_ep(&id, &info, NULL, &init));
	IS(id->qp->qp_type, IBV_QPT_RC);
	/* A queue for its receives, in the identifier's domain. */
	struct ibv_srq_init_attr_ex shared;
	FILL(shared);
	shared.attr.max_wr = 4;
	shared.attr.max_sge = 1;
	shared.comp_mask = IBV_SRQ_INIT_ATTR_TYPE;
	shared.srq_type = IBV_SRQT_BASIC;
	OK(rdma_create_srq_ex(id, &shared));
	rdma_destroy_ep(id);
}

static const struct {
	const char *what;
	void (*rows)(void);
} table[] = {
	{ "a shared receive queue", a_shared_receive_queue },
	{ "an extended shared receive queue", an_extended_shared_receive_queue },
	{ "a queue pair with a shared receive queue", a_queue_pair_with_a_shared_receive_queue },
	{ "an extended queue pair", an_extended_queue_pair },
	{ "XRC", xrc },
	{ "an extended completion queue", an_extended_completion_queue },
	{ "a parent domain", a_parent_domain },
	{ "a region that is registered again", a_region_that_is_registered_again },
	{ "address handles", address_handles },
	{ "states", states },
	{ "requests on RC", requests_on_rc },
	{ "requests on UC and UD", requests_on_uc_and_ud },
	{ "groups", groups },
	{ "requests to receive", requests_to_receive },
	{ "requests by calls", requests_by_calls },
	{ "connections", connections },
	{ "addresses", addresses },
	{ "an endpoint", an_endpoint },
};

int main(int argc, char **argv)
{
	context = open_first();
	pd = MUST(ibv_alloc_pd(context));
	cq = MUST(ibv_create_cq(context, 64, NULL, NULL, 0));
	mr = MUST(ibv_reg_mr(pd, memory, sizeof memory, ALL_RIGHTS));
	gid = own_gid(context);
	for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
		const int before = failures;
		if (argc > 1 && strcmp(argv[1], table[i].what) != 0)
			continue;
		table[i].rows();
		if (failures != before)
			fprintf(stderr, "not ignored: %s\n", table[i].what);
	}
	OK(ibv_dereg_mr(mr));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
