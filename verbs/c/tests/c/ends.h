/* A device with a queue pair and memory for its messages. Behind check.h. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char memory[256];
};

/* Opens it, on its context if it has one. */
static inline void open_end(struct end *end, enum ibv_qp_type type)
{
	if (!end->context)
		end->context = open_first();
	end->pd = MUST(ibv_alloc_pd(end->context));
	end->channel = MUST(ibv_create_comp_channel(end->context));
	end->cq = MUST(ibv_create_cq(end->context, 64, NULL, end->channel, 0));
	end->qp = make_qp(end->pd, end->cq, type);
	end->mr = MUST(ibv_reg_mr(end->pd, end->memory, sizeof end->memory, IBV_ACCESS_LOCAL_WRITE));
}

static inline int receive_at(struct end *end)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->memory, .length = 128, .lkey = end->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1 }, *bad;
	return ibv_post_recv(end->qp, &wr, &bad);
}

static inline int send_from(struct end *end)
{
	struct ibv_sge sge = { .addr = (uintptr_t)end->memory + 128, .length = 64, .lkey = end->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	return ibv_post_send(end->qp, &wr, &bad);
}
