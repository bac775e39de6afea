/* Two queue pairs of one process, and a WRITE from one to the other while another thread waits for its completion. Built with sanitizers
 * of compilers, which end it where they find a fault. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NEED(what) ((what) ? (void)0 : (perror(#what), exit(1)))

static struct ibv_cq *cq;

static void *wait_for_completion(void *wc)
{
	int count;
	while ((count = ibv_poll_cq(cq, 1, wc)) == 0)
		;
	NEED(count == 1);
	return NULL;
}

static void connect_to(struct ibv_qp *qp, unsigned int peer, const union ibv_gid *gid)
{
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ibv_qp_attr rtr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
				   .min_rnr_timer = 12,
				   .ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = *gid, .sgid_index = 0, .hop_limit = 1 } } };
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1 };
	NEED(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	NEED(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					      IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	NEED(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					      IBV_QP_MAX_QP_RD_ATOMIC));
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	NEED(list && list[0]);
	struct ibv_context *context = ibv_open_device(list[0]);
	NEED(context);
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	NEED(pd && cq);
	enum { LEN = 4096 };
	char *memory = calloc(2, LEN);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * LEN, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(mr);
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
					 .cap = { .max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1 } };
	struct ibv_qp *from = ibv_create_qp(pd, &init), *to = ibv_create_qp(pd, &init);
	union ibv_gid gid;
	NEED(from && to && !ibv_query_gid(context, 1, 0, &gid));
	connect_to(from, to->qp_num, &gid);
	connect_to(to, from->qp_num, &gid);

	memset(memory, 'x', LEN);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = LEN, .lkey = mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { .remote_addr = (uintptr_t)memory + LEN, .rkey = mr->rkey } }, *bad;
	struct ibv_wc wc;
	pthread_t thread;
	NEED(!pthread_create(&thread, NULL, wait_for_completion, &wc));
	NEED(!ibv_post_send(from, &wr, &bad));
	NEED(!pthread_join(thread, NULL));
	NEED(wc.status == IBV_WC_SUCCESS && !memcmp(memory, memory + LEN, LEN));

	NEED(!ibv_destroy_qp(from) && !ibv_destroy_qp(to) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) &&
	     !ibv_close_device(context));
	free(memory);
	puts("arrived");
	return 0;
}
