/* Checks that say what was expected, and count. A program ends with `return failures != 0`. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Exported, and in no header. */
const char *ibv_get_sysfs_path(void);
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
int ibv_dontfork_range(void *base, size_t size);
int ibv_dofork_range(void *base, size_t size);
/* In later headers, some with structures that earlier ones do not have: under names of our own. */
struct later_mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
#define LATER(type, name, ...) type later_##name(__VA_ARGS__) __asm__(#name)
LATER(struct ibv_mr *, ibv_reg_mr_ex, struct ibv_pd *pd, struct later_mr_attr *attr);
LATER(int, ibv_query_port_speed, struct ibv_context *context, uint32_t port_num, uint64_t *speed);
LATER(void *, ibv_alloc_buf, struct ibv_pd *pd, size_t size, void **buf);
LATER(void, ibv_free_buf, void *buf);
LATER(struct ibv_mr *, ibv_reg_buf_mr, struct ibv_pd *pd, void *buf, void *addr, size_t length, int access);
LATER(int, ibv_export_buf_dmabuf_fd, void *buf);

static int failures;

static void say(int line, const char *text, long got, long wanted)
{
	fprintf(stderr, "line %d: %s: got %ld (%s), wanted %ld (%s)\n", line, text, got, strerror((int)got), wanted,
		strerror((int)wanted));
	failures++;
}

/* A number, whatever it means. */
#define IS(call, wanted)                                           \
	do {                                                       \
		long got_ = (long)(call), wanted_ = (long)(wanted); \
		if (got_ != wanted_)                               \
			say(__LINE__, #call, got_, wanted_);       \
	} while (0)
/* A call that returns 0 or an error number. */
#define OK(call) IS(call, 0)
#define REFUSED(call, number) IS(call, number)
/* A call that returns NULL and sets errno. */
#define NO_OBJECT(call, number)                                              \
	do {                                                                 \
		errno = 0;                                                   \
		if (call)                                                    \
			say(__LINE__, #call " gave an object", 1, 0);        \
		else if (errno != (number))                                  \
			say(__LINE__, #call, errno, number);                 \
	} while (0)
/* A call that returns -1 and sets errno. */
#define MINUS_ONE(call, number)                                              \
	do {                                                                 \
		errno = 0;                                                   \
		if ((call) != -1)                                            \
			say(__LINE__, #call " is not -1", 0, -1);            \
		else if (errno != (number))                                  \
			say(__LINE__, #call, errno, number);                 \
	} while (0)
/* A call that must give something, or nothing else makes sense. */
#define MUST(pointer)                                                        \
	({                                                                   \
		__typeof__(pointer) got_ = (pointer);                        \
		if (!got_) {                                                 \
			fprintf(stderr, "line %d: %s: %s\n", __LINE__, #pointer, strerror(errno)); \
			exit(2);                                             \
		}                                                            \
		got_;                                                        \
	})

#ifndef LOADS_ITSELF
static inline struct ibv_context *open_first(void)
{
	struct ibv_device **list = MUST(ibv_get_device_list(NULL));
	struct ibv_context *context = MUST(ibv_open_device(list[0]));
	ibv_free_device_list(list);
	return context;
}

/* The first IPv4 address, at index 1. */
static inline union ibv_gid own_gid(struct ibv_context *context)
{
	union ibv_gid gid;
	OK(ibv_query_gid(context, 1, 1, &gid));
	return gid;
}

static inline struct ibv_qp *make_qp(struct ibv_pd *pd, struct ibv_cq *cq, enum ibv_qp_type type)
{
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = type,
					 .cap = { .max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 4,
						  .max_recv_sge = 4, .max_inline_data = 64 } };
	return MUST(ibv_create_qp(pd, &init));
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
						       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC };
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	IS(qp->state, IBV_QPS_INIT);
}

/* Connects an RC queue pair in INIT to another one of the same device. */
static inline void connect_from_init(struct ibv_qp *qp, unsigned int peer, union ibv_gid gid)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
				    .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
				    .ah_attr = { .is_global = 1, .port_num = 1,
						 .grh = { .dgid = gid, .sgid_index = 1, .hop_limit = 64 } } };
	OK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
					    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = { .qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				   .max_rd_atomic = 4 };
	OK(ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
	IS(qp->state, IBV_QPS_RTS);
}

static inline void connect_rc(struct ibv_qp *qp, unsigned int peer, union ibv_gid gid)
{
	to_init(qp);
	connect_from_init(qp, peer, gid);
}

/* Waits for a completion without a limit: the test that runs the program has one. */
static inline struct ibv_wc completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int n;
	while ((n = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	IS(n, 1);
	return wc;
}
#endif
