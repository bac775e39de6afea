/* Calls that are not supported: they refuse, whatever they are given. docs/dropin.md has a line for each family. */
#include <rdma/rdma_cma.h>
#include <rdma/rsocket.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/uio.h>

#include "check.h"

/* Exported, for libraries of drivers; they return nothing, and the kernel's structures have no header here. */
void ibv_copy_ah_attr_from_kern(struct ibv_ah_attr *to, void *from);
void ibv_copy_path_rec_from_kern(struct ibv_sa_path_rec *to, void *from);
void ibv_copy_path_rec_to_kern(void *to, struct ibv_sa_path_rec *from);
void ibv_copy_qp_attr_from_kern(struct ibv_qp_attr *to, void *from);

/* In later headers. */
LATER(void *, ibv_alloc_dmah, struct ibv_context *context, void *attr);
LATER(int, ibv_dealloc_dmah, void *dmah);
LATER(int, ibv_dm_export_dmabuf_fd, struct ibv_dm *dm);
LATER(int, _ibv_query_comp_cntr_caps, struct ibv_context *context, void *caps, size_t size);
LATER(void *, ibv_create_comp_cntr, struct ibv_context *context, void *attr);
LATER(int, ibv_destroy_comp_cntr, void *counter);
LATER(int, ibv_set_comp_cntr, void *counter, uint64_t value);
LATER(int, ibv_set_err_comp_cntr, void *counter, uint64_t value);
LATER(int, ibv_inc_comp_cntr, void *counter, uint64_t amount);
LATER(int, ibv_inc_err_comp_cntr, void *counter, uint64_t amount);
LATER(int, ibv_read_comp_cntr, void *counter, uint64_t *value);
LATER(int, ibv_read_err_comp_cntr, void *counter, uint64_t *value);
LATER(int, ibv_qp_attach_comp_cntr, struct ibv_qp *qp, void *counter, void *attr);
LATER(int, repoll_create, int flags);
LATER(int, repoll_ctl, int epoll, int operation, int fd, struct epoll_event *event);
LATER(int, repoll_wait, int epoll, struct epoll_event *events, int max, int timeout);

/* The private node: the test writes the list of its functions, one REFUSES(name) a line. */
#define REFUSES(name) extern int name(void);
#define GIVES_MINUS_ONE(name) extern int name(void);
#define GIVES_NULL(name) extern void *name(void);
#include "private.h"
#undef REFUSES
#undef GIVES_MINUS_ONE
#undef GIVES_NULL
extern bool verbs_allow_disassociate_destroy;

static void private_symbols(void)
{
#define REFUSES(name) REFUSED(name(), EOPNOTSUPP);
#define GIVES_MINUS_ONE(name) MINUS_ONE(name(), EOPNOTSUPP);
#define GIVES_NULL(name) NO_OBJECT(name(), EOPNOTSUPP);
#include "private.h"
	IS(verbs_allow_disassociate_destroy, 0);
}

/* Flow steering, its actions and counters. */
static void flows(struct ibv_context *context, struct ibv_qp *qp)
{
	struct ibv_flow_attr attr = { .type = IBV_FLOW_ATTR_NORMAL, .size = sizeof attr, .port = 1 };
	struct ibv_flow flow = { .context = context };
	NO_OBJECT(ibv_create_flow(qp, &attr), EOPNOTSUPP);
	REFUSED(ibv_destroy_flow(&flow), EOPNOTSUPP);
	struct ibv_flow_action_esp_attr esp = { 0 };
	struct ibv_flow_action action = { .context = context };
	NO_OBJECT(ibv_create_flow_action_esp(context, &esp), EOPNOTSUPP);
	REFUSED(ibv_modify_flow_action_esp(&action, &esp), EOPNOTSUPP);
	REFUSED(ibv_destroy_flow_action(&action), EOPNOTSUPP);
	struct ibv_counters_init_attr init = { 0 };
	struct ibv_counters counters = { .context = context };
	struct ibv_counter_attach_attr attach = { 0 };
	uint64_t values[1];
	NO_OBJECT(ibv_create_counters(context, &init), EOPNOTSUPP);
	REFUSED(ibv_attach_counters_point_flow(&counters, &attach, &flow), EOPNOTSUPP);
	REFUSED(ibv_read_counters(&counters, values, 1, 0), EOPNOTSUPP);
	REFUSED(ibv_destroy_counters(&counters), EOPNOTSUPP);
}

/* Work queues and their tables. */
static void work_queues(struct ibv_context *context)
{
	struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ };
	struct ibv_wq wq = { .context = context };
	struct ibv_wq_attr attr = { 0 };
	NO_OBJECT(ibv_create_wq(context, &init), EOPNOTSUPP);
	REFUSED(ibv_modify_wq(&wq, &attr), EOPNOTSUPP);
	REFUSED(ibv_destroy_wq(&wq), EOPNOTSUPP);
	struct ibv_rwq_ind_table_init_attr table_init = { 0 };
	struct ibv_rwq_ind_table table = { .context = context };
	NO_OBJECT(ibv_create_rwq_ind_table(context, &table_init), EOPNOTSUPP);
	REFUSED(ibv_destroy_rwq_ind_table(&table), EOPNOTSUPP);
}

/* Counters of completions, and handles of DMA. */
static void later(struct ibv_context *context, struct ibv_qp *qp)
{
	uint64_t room[8] = { 0 };
	NO_OBJECT(later_ibv_alloc_dmah(context, room), EOPNOTSUPP);
	REFUSED(later_ibv_dealloc_dmah(room), EOPNOTSUPP);
	REFUSED(later__ibv_query_comp_cntr_caps(context, room, sizeof room), EOPNOTSUPP);
	NO_OBJECT(later_ibv_create_comp_cntr(context, room), EOPNOTSUPP);
	REFUSED(later_ibv_set_comp_cntr(room, 1), EOPNOTSUPP);
	REFUSED(later_ibv_set_err_comp_cntr(room, 1), EOPNOTSUPP);
	REFUSED(later_ibv_inc_comp_cntr(room, 1), EOPNOTSUPP);
	REFUSED(later_ibv_inc_err_comp_cntr(room, 1), EOPNOTSUPP);
	REFUSED(later_ibv_read_comp_cntr(room, room), EOPNOTSUPP);
	REFUSED(later_ibv_read_err_comp_cntr(room, room), EOPNOTSUPP);
	REFUSED(later_ibv_qp_attach_comp_cntr(qp, room, room), EOPNOTSUPP);
	REFUSED(later_ibv_destroy_comp_cntr(room), EOPNOTSUPP);
}

/* Memory of the device, of other devices, and of other processes. */
static void memory(struct ibv_context *context, struct ibv_pd *pd)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm dm = { .context = context };
	NO_OBJECT(ibv_alloc_dm(context, &attr), EOPNOTSUPP);
	NO_OBJECT(ibv_reg_dm_mr(pd, &dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	REFUSED(ibv_free_dm(&dm), EOPNOTSUPP);
	NO_OBJECT(ibv_reg_dmabuf_mr(pd, 0, 64, 0, 0, IBV_ACCESS_LOCAL_WRITE), EOPNOTSUPP);
	MINUS_ONE(later_ibv_dm_export_dmabuf_fd(&dm), EOPNOTSUPP);
	NO_OBJECT(ibv_import_device(0), EOPNOTSUPP);
	NO_OBJECT(ibv_import_pd(context, 0), EOPNOTSUPP);
	NO_OBJECT(ibv_import_mr(pd, 0), EOPNOTSUPP);
	NO_OBJECT(ibv_import_dm(context, 0), EOPNOTSUPP);
	/* Nothing can have been imported: these return nothing, and leave the objects of this process alone. */
	struct ibv_mr mr = { .context = context, .pd = pd };
	ibv_unimport_pd(pd);
	ibv_unimport_mr(&mr);
	ibv_unimport_dm(&dm);
	ibv_unimport_pd(NULL);
	IS(mr.pd == pd && dm.context == context, 1);
	struct ibv_mr *still = MUST(ibv_reg_mr(pd, &mr, sizeof mr, 0));
	OK(ibv_dereg_mr(still));
}

static void queue_pairs(struct ibv_context *context, struct ibv_pd *pd, struct ibv_cq *cq, struct ibv_qp *qp)
{
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1000 };
	REFUSED(ibv_modify_qp_rate_limit(qp, &rate), EOPNOTSUPP);
	struct ibv_ece ece = { 0 };
	REFUSED(ibv_query_ece(qp, &ece), EOPNOTSUPP);
	REFUSED(ibv_set_ece(qp, &ece), EOPNOTSUPP);
	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE };
	REFUSED(ibv_modify_cq(cq, &moderate), EOPNOTSUPP);
	/* Segmentation offload, and headers by the device: asked for when a queue pair is made, or never. */
	struct ibv_qp_init_attr_ex ex = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .pd = pd,
					  .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER };
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
	ex.create_flags = IBV_QP_CREATE_SCATTER_FCS;
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex = (struct ibv_qp_init_attr_ex){ .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_DRIVER, .pd = pd,
					   .comp_mask = IBV_QP_INIT_ATTR_PD };
	NO_OBJECT(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);

	/* Tag matching: neither its queues nor its operations. */
	struct ibv_srq_init_attr_ex tm = { .attr = { .max_wr = 4, .max_sge = 1 }, .srq_type = IBV_SRQT_TM, .pd = pd, .cq = cq,
					   .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ };
	NO_OBJECT(ibv_create_srq_ex(context, &tm), EOPNOTSUPP);
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_srq *srq = MUST(ibv_create_srq(pd, &init));
	struct ibv_ops_wr op = { .opcode = IBV_WR_TAG_SYNC }, *bad = NULL;
	REFUSED(ibv_post_srq_ops(srq, &op, &bad), EOPNOTSUPP);
	IS(bad == &op, 1);
	OK(ibv_destroy_srq(srq));
	struct ibv_device_attr_ex attr;
	OK(ibv_query_device_ex(context, NULL, &attr));
	IS(attr.tm_caps.max_ops | attr.tm_caps.max_num_tags, 0);
	IS(attr.tso_caps.max_tso | attr.tso_caps.supported_qpts, 0);
	IS(attr.rss_caps.supported_qpts | attr.max_wq_type_rq | attr.raw_packet_caps, 0);
	IS(ibv_is_qpt_supported(attr.tso_caps.supported_qpts, IBV_QPT_RC), 0);
	IS(attr.max_dm_size, 0);
	IS(attr.packet_pacing_caps.qp_rate_limit_max, 0);
	IS(attr.cq_mod_caps.max_cq_count, 0);

	/* Fields of completions that no completion has. */
	struct ibv_cq_init_attr_ex cq_init = { .cqe = 4 };
	const uint64_t none[] = { IBV_WC_EX_WITH_CVLAN, IBV_WC_EX_WITH_FLOW_TAG, IBV_WC_EX_WITH_TM_INFO };
	for (unsigned int i = 0; i < sizeof none / sizeof *none; i++) {
		cq_init.wc_flags = none[i];
		NO_OBJECT(ibv_create_cq_ex(context, &cq_init), EOPNOTSUPP);
	}
}

static void structures_of_the_kernel(struct ibv_context *context)
{
	struct ibv_ah_attr ah = { 0 };
	struct ibv_qp_attr qp = { 0 };
	struct ibv_sa_path_rec path = { 0 };
	char kernel[512] = { 0 };
	/* Nothing is returned: errno says it. */
	errno = 0;
	IS((ibv_copy_ah_attr_from_kern(&ah, kernel), errno), EOPNOTSUPP);
	errno = 0;
	IS((ibv_copy_qp_attr_from_kern(&qp, kernel), errno), EOPNOTSUPP);
	errno = 0;
	IS((ibv_copy_path_rec_from_kern(&path, kernel), errno), EOPNOTSUPP);
	errno = 0;
	IS((ibv_copy_path_rec_to_kern(kernel, &path), errno), EOPNOTSUPP);
	uint8_t mac[6];
	uint16_t vlan;
	REFUSED(ibv_resolve_eth_l2_from_gid(context, &ah, mac, &vlan), EOPNOTSUPP);
}

/* Sockets over RDMA. */
static void sockets(void)
{
	char byte = 0;
	socklen_t len = 0;
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	MINUS_ONE(rsocket(AF_INET, SOCK_STREAM, 0), ENOSYS);
	MINUS_ONE(rbind(0, NULL, 0), ENOSYS);
	MINUS_ONE(rlisten(0, 1), ENOSYS);
	MINUS_ONE(raccept(0, NULL, &len), ENOSYS);
	MINUS_ONE(rconnect(0, NULL, 0), ENOSYS);
	MINUS_ONE(rshutdown(0, SHUT_RDWR), ENOSYS);
	MINUS_ONE(rrecv(0, &byte, 1, 0), ENOSYS);
	MINUS_ONE(rrecvfrom(0, &byte, 1, 0, NULL, &len), ENOSYS);
	MINUS_ONE(rrecvmsg(0, &message, 0), ENOSYS);
	MINUS_ONE(rsend(0, &byte, 1, 0), ENOSYS);
	MINUS_ONE(rsendto(0, &byte, 1, 0, NULL, 0), ENOSYS);
	MINUS_ONE(rsendmsg(0, &message, 0), ENOSYS);
	MINUS_ONE(rread(0, &byte, 1), ENOSYS);
	MINUS_ONE(rreadv(0, &piece, 1), ENOSYS);
	MINUS_ONE(rwrite(0, &byte, 1), ENOSYS);
	MINUS_ONE(rwritev(0, &piece, 1), ENOSYS);
	MINUS_ONE(rselect(0, NULL, NULL, NULL, NULL), ENOSYS);
	MINUS_ONE(rgetpeername(0, NULL, &len), ENOSYS);
	MINUS_ONE(rgetsockname(0, NULL, &len), ENOSYS);
	MINUS_ONE(rsetsockopt(0, SOL_SOCKET, 0, &byte, 1), ENOSYS);
	MINUS_ONE(rgetsockopt(0, SOL_SOCKET, 0, &byte, &len), ENOSYS);
	MINUS_ONE(rfcntl(0, 0), ENOSYS);
	MINUS_ONE(riomap(0, &byte, 1, 0, 0, 0), ENOSYS);
	MINUS_ONE(riounmap(0, &byte, 1), ENOSYS);
	MINUS_ONE((ssize_t)riowrite(0, &byte, 1, 0, 0), ENOSYS);
	MINUS_ONE(rclose(0), ENOSYS);
	/* These work: programs call them with other descriptors. */
	struct epoll_event wanted = { .events = EPOLLOUT, .data.u32 = 7 }, got;
	int pipes[2], epoll = later_repoll_create(O_CLOEXEC);
	OK(pipe(pipes));
	REFUSED(later_repoll_ctl(epoll, EPOLL_CTL_MOD, pipes[1], &wanted), ENOENT);
	OK(later_repoll_ctl(epoll, EPOLL_CTL_ADD, pipes[1], &wanted));
	IS(later_repoll_wait(epoll, &got, 1, -1), 1);
	IS(got.data.u32, 7);
	close(epoll);
	close(pipes[0]);
	close(pipes[1]);
	struct pollfd none = { .fd = -1 };
	IS(rpoll(&none, 1, 0), 0);
}

int main(void)
{
	private_symbols();
	sockets();
	struct ibv_context *context = open_first();
	structures_of_the_kernel(context);
	struct ibv_pd *pd = MUST(ibv_alloc_pd(context));
	struct ibv_cq *cq = MUST(ibv_create_cq(context, 16, NULL, NULL, 0));
	struct ibv_qp *qp = make_qp(pd, cq, IBV_QPT_RC);
	later(context, qp);
	flows(context, qp);
	work_queues(context);
	memory(context, pd);
	queue_pairs(context, pd, cq, qp);
	OK(ibv_destroy_qp(qp));
	OK(ibv_destroy_cq(cq));
	OK(ibv_dealloc_pd(pd));
	OK(ibv_close_device(context));
	return failures != 0;
}
