// Connection management from C: every call with good and bad arguments, within one process whose port is a loopback.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SELF "10.77.0.1"
#define PATIENCE_MS 60000

static int wrong;

// Says that a line does not hold.
#define HOLDS(what)                                                                                                    \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: not so: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno));           \
            wrong++;                                                                                                   \
        }                                                                                                              \
    } while (0)
// The same, and the rest makes no sense without it.
#define MUST(what)                                                                                                     \
    do {                                                                                                               \
        if (!(what)) {                                                                                                 \
            printf("%s:%d: failed: %s (errno %d, %s)\n", __FILE__, __LINE__, #what, errno, strerror(errno));           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
// A call that returns -1, and this errno.
#define REFUSED(call, error)                                                                                           \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        long result_ = (long)(call);                                                                                   \
        if (result_ != -1 || errno != (error)) {                                                                       \
            printf("%s:%d: %s returned %ld, errno %d (%s), and not %s\n", __FILE__, __LINE__, #call, result_, errno,   \
                   strerror(errno), #error);                                                                           \
            wrong++;                                                                                                   \
        }                                                                                                              \
    } while (0)

static struct sockaddr_in in(const char *ip, int port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, ip, &a.sin_addr);
    return a;
}
#define ADDR(ip, port) ((struct sockaddr *)&(struct sockaddr_in[]){in(ip, port)}[0])

// The next event of a channel, which has to be this one.
static struct rdma_cm_event *next_event(struct rdma_event_channel *c, enum rdma_cm_event_type type) {
    struct rdma_cm_event *e;
    MUST(rdma_get_cm_event(c, &e) == 0);
    if (e->event != type) {
        printf("%s and not %s, status %d\n", rdma_event_str(e->event), rdma_event_str(type), e->status);
        exit(1);
    }
    return e;
}
static void event(struct rdma_event_channel *c, enum rdma_cm_event_type type) {
    MUST(rdma_ack_cm_event(next_event(c, type)) == 0);
}

static struct ibv_qp_init_attr sizes(void) {
    return (struct ibv_qp_init_attr){
        .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 16},
        .qp_type = IBV_QPT_RC,
    };
}

static void without_a_device(void) {
    struct rdma_cm_event *e;
    struct rdma_event_channel *c = rdma_create_event_channel();
    MUST(c && c->fd >= 0);
    HOLDS(!(fcntl(c->fd, F_GETFL) & O_NONBLOCK) && fcntl(c->fd, F_GETFD) & FD_CLOEXEC);
    MUST(fcntl(c->fd, F_SETFL, fcntl(c->fd, F_GETFL) | O_NONBLOCK) == 0);
    REFUSED(rdma_get_cm_event(c, &e), EAGAIN);
    REFUSED(rdma_get_cm_event(c, NULL), EINVAL);
    REFUSED(rdma_get_cm_event(NULL, &e), EINVAL);
    REFUSED(rdma_ack_cm_event(NULL), EINVAL);
    rdma_destroy_event_channel(c);
    rdma_destroy_event_channel(c);
    rdma_destroy_event_channel(NULL);
    REFUSED(rdma_get_cm_event(c, &e), EINVAL);

    HOLDS(!strcmp(rdma_event_str(RDMA_CM_EVENT_ESTABLISHED), "RDMA_CM_EVENT_ESTABLISHED"));
    HOLDS(rdma_event_str(1000) != NULL);

    REFUSED(rsocket(AF_INET, SOCK_STREAM, 0), ENOSYS);
    REFUSED(rsend(0, "x", 1, 0), ENOSYS);
    struct pollfd p = {.fd = -1};
    HOLDS(rpoll(&p, 1, 0) == 0);
}

static void names(void) {
    struct rdma_addrinfo *i, hints = {.ai_flags = RAI_PASSIVE};
    REFUSED(rdma_getaddrinfo(NULL, NULL, NULL, &i), EINVAL);
    REFUSED(rdma_getaddrinfo("localhost", "1", NULL, NULL), EINVAL);
    HOLDS(rdma_getaddrinfo("no.such.host.invalid", "1", &(struct rdma_addrinfo){.ai_flags = RAI_NUMERICHOST}, &i) != 0);
    MUST(rdma_getaddrinfo(SELF, "7001", NULL, &i) == 0);
    HOLDS(i->ai_dst_len == sizeof(struct sockaddr_in) && !i->ai_src_addr && !i->ai_next && i->ai_family == AF_INET);
    HOLDS(i->ai_port_space == RDMA_PS_TCP && i->ai_qp_type == IBV_QPT_RC);
    HOLDS(((struct sockaddr_in *)i->ai_dst_addr)->sin_port == htons(7001));
    rdma_freeaddrinfo(i);
    MUST(rdma_getaddrinfo("::1", "7001", &hints, &i) == 0);
    HOLDS(i->ai_src_len == sizeof(struct sockaddr_in6) && !i->ai_dst_addr && i->ai_family == AF_INET6);
    rdma_freeaddrinfo(i);
    hints = (struct rdma_addrinfo){.ai_port_space = RDMA_PS_UDP};
    MUST(rdma_getaddrinfo(SELF, NULL, &hints, &i) == 0);
    HOLDS(i->ai_port_space == RDMA_PS_UDP && i->ai_qp_type == IBV_QPT_UD);
    rdma_freeaddrinfo(i);
    hints = (struct rdma_addrinfo){.ai_qp_type = IBV_QPT_UC};
    MUST(rdma_getaddrinfo(SELF, NULL, &hints, &i) == 0);
    HOLDS(i->ai_port_space == RDMA_PS_IB && i->ai_qp_type == IBV_QPT_UC);
    rdma_freeaddrinfo(i);
    rdma_freeaddrinfo(NULL);
}

static void *of_a_program(size_t len) {
    void *made = calloc(1, len);
    MUST(made);
    return made;
}
// Programs make parts of a list, or all of it, by malloc, and free what the library made by free.
static void names_of_programs(void) {
    struct rdma_addrinfo *i, *own, hints = {.ai_flags = RAI_PASSIVE};
    MUST(rdma_getaddrinfo(SELF, "7001", NULL, &i) == 0);
    free(i->ai_dst_addr);
    i->ai_dst_addr = of_a_program(sizeof(struct sockaddr_in));
    i->ai_src_addr = of_a_program(sizeof(struct sockaddr_in));
    free(i->ai_dst_canonname);
    i->ai_dst_canonname = strdup("a.name.longer.than.the.smallest.piece.of.malloc");
    i->ai_src_canonname = strdup("another");
    own = of_a_program(sizeof *own);
    own->ai_src_addr = of_a_program(sizeof(struct sockaddr_in6));
    own->ai_route = of_a_program(96);
    own->ai_connect = of_a_program(24);
    MUST(rdma_getaddrinfo(SELF, "7002", &hints, &own->ai_next) == 0);
    i->ai_next = own;
    rdma_freeaddrinfo(i);
    rdma_freeaddrinfo(of_a_program(sizeof *i));

    MUST(rdma_getaddrinfo(SELF, "7001", NULL, &i) == 0);
    free(i->ai_dst_canonname);
    free(i->ai_dst_addr);
    free(i);
}

// In later headers.
#define LATER(type, name, ...) type later_##name(__VA_ARGS__) __asm__(#name)
LATER(int, rdma_resolve_addrinfo, struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
LATER(int, rdma_query_addrinfo, struct rdma_cm_id *, struct rdma_addrinfo **);
LATER(int, rdma_write_cm_event, struct rdma_cm_id *, enum rdma_cm_event_type, int, uint64_t);
#define ADDRINFO_RESOLVED ((enum rdma_cm_event_type)16)
#define USER ((enum rdma_cm_event_type)18)

// Names that are looked up for an identifier, with an event; and events of the program's own.
static void names_with_events(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *id, *synchronous;
    struct rdma_addrinfo *i, hints = {.ai_flags = 0x10};
    MUST(c && rdma_create_id(c, &id, NULL, RDMA_PS_TCP) == 0 && rdma_create_id(NULL, &synchronous, NULL, RDMA_PS_TCP) == 0);
    REFUSED(later_rdma_query_addrinfo(id, &i), ENOENT);
    REFUSED(later_rdma_resolve_addrinfo(id, NULL, "x", &hints), EOPNOTSUPP);
    REFUSED(later_rdma_resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
    REFUSED(later_rdma_resolve_addrinfo(NULL, SELF, "7001", NULL), EINVAL);
    hints.ai_flags = RAI_NUMERICHOST;
    HOLDS(later_rdma_resolve_addrinfo(id, "no.such.host.invalid", "1", &hints) == -1);
    MUST(later_rdma_resolve_addrinfo(id, SELF, "7001", NULL) == 0);
    REFUSED(later_rdma_resolve_addrinfo(id, SELF, "7001", NULL), EBUSY);
    struct rdma_cm_event *e = next_event(c, ADDRINFO_RESOLVED);
    HOLDS(e->id == id && e->status == 0);
    MUST(rdma_ack_cm_event(e) == 0);
    REFUSED(later_rdma_query_addrinfo(id, NULL), EINVAL);
    MUST(later_rdma_query_addrinfo(id, &i) == 0);
    HOLDS(i->ai_dst_len == sizeof(struct sockaddr_in) && ((struct sockaddr_in *)i->ai_dst_addr)->sin_port == htons(7001));
    rdma_freeaddrinfo(i);
    REFUSED(later_rdma_query_addrinfo(id, &i), ENOENT);
    MUST(later_rdma_resolve_addrinfo(synchronous, SELF, "7001", NULL) == 0);
    HOLDS(synchronous->event && synchronous->event->event == ADDRINFO_RESOLVED);

    MUST(later_rdma_write_cm_event(id, USER, -7, 0x123456789abcdefull) == 0);
    REFUSED(later_rdma_write_cm_event(id, RDMA_CM_EVENT_ESTABLISHED, 0, 0), EINVAL);
    REFUSED(later_rdma_write_cm_event(NULL, USER, 0, 0), EINVAL);
    MUST(rdma_get_cm_event(c, &e) == 0);
    HOLDS(e->event == USER && e->id == id && e->status == -7 && *(uint64_t *)&e->param == 0x123456789abcdefull);
    HOLDS(!strcmp(rdma_event_str(e->event), "RDMA_CM_EVENT_USER"));
    MUST(rdma_ack_cm_event(e) == 0);
    // With an event and a result that nobody takes.
    MUST(later_rdma_write_cm_event(id, USER, 0, 1) == 0 && rdma_destroy_id(id) == 0 && rdma_destroy_id(synchronous) == 0);
    rdma_destroy_event_channel(c);
}

static void devices(void) {
    int n = 0;
    struct ibv_context **list = rdma_get_devices(&n), **again = rdma_get_devices(NULL);
    MUST(list && again && n == 1 && list[0] && !list[1]);
    HOLDS(list[0] == again[0] && !strcmp(ibv_get_device_name(list[0]->device), "roce0"));
    rdma_free_devices(list);
    rdma_free_devices(again);
    rdma_free_devices(NULL);
}

static void refusals(void) {
    struct rdma_event_channel *c = rdma_create_event_channel(), *gone = rdma_create_event_channel();
    struct rdma_cm_id *id, *other;
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR};
    struct ibv_qp_init_attr init = sizes();
    struct ibv_ece ece = {0};
    uint8_t byte = 200;
    int mask, number = 1;
    MUST(c && gone);
    rdma_destroy_event_channel(gone);
    REFUSED(rdma_create_id(c, NULL, NULL, RDMA_PS_TCP), EINVAL);
    REFUSED(rdma_create_id(c, &id, NULL, 77), EINVAL);
    REFUSED(rdma_create_id(c, &id, NULL, RDMA_PS_IPOIB), ENODEV);
    REFUSED(rdma_create_id(gone, &id, NULL, RDMA_PS_TCP), EINVAL);
    MUST(rdma_create_id(c, &id, &wrong, RDMA_PS_TCP) == 0);
    HOLDS(id->channel == c && id->context == &wrong && id->ps == RDMA_PS_TCP && id->qp_type == IBV_QPT_RC);
    HOLDS(!id->verbs && !id->qp && !id->event && !id->port_num);

    REFUSED(rdma_bind_addr(NULL, ADDR(SELF, 0)), EINVAL);
    REFUSED(rdma_bind_addr(id, NULL), EINVAL);
    REFUSED(rdma_bind_addr(id, &(struct sockaddr){.sa_family = AF_UNIX}), EAFNOSUPPORT);
    REFUSED(rdma_bind_addr(id, ADDR("192.0.2.77", 0)), EADDRNOTAVAIL);
    REFUSED(rdma_resolve_addr(id, NULL, NULL, 1), EINVAL);
    REFUSED(rdma_resolve_addr(id, NULL, ADDR("192.0.2.77", 1), 1), ENETUNREACH);
    REFUSED(rdma_resolve_route(id, 1), EINVAL);
    REFUSED(rdma_resolve_route(NULL, 1), EINVAL);
    REFUSED(rdma_connect(id, NULL), EINVAL);
    REFUSED(rdma_accept(id, NULL), EINVAL);
    REFUSED(rdma_accept(NULL, NULL), EINVAL);
    REFUSED(rdma_reject(id, NULL, 0), EINVAL);
    REFUSED(rdma_reject(id, NULL, 1), EINVAL);
    REFUSED(rdma_reject_ece(id, NULL, 0), EINVAL);
    REFUSED(rdma_establish(id), EINVAL);
    REFUSED(rdma_disconnect(id), ENOTCONN);
    REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), ENOTCONN);
    REFUSED(rdma_notify(id, 1000), EINVAL);
    HOLDS(rdma_notify(id, IBV_EVENT_PORT_ERR) == 0);
    REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
    REFUSED(rdma_init_qp_attr(id, NULL, &mask), EINVAL);
    REFUSED(rdma_init_qp_attr(id, &attr, NULL), EINVAL);
    attr.qp_state = IBV_QPS_INIT;
    HOLDS(rdma_init_qp_attr(id, &attr, &mask) == 0 && mask & IBV_QP_STATE && attr.port_num == 1);
    REFUSED(rdma_get_request(id, &other), EINVAL);
    REFUSED(rdma_join_multicast(id, ADDR("239.1.1.1", 0), NULL), EINVAL);
    REFUSED(rdma_leave_multicast(id, ADDR("239.1.1.1", 0)), EADDRNOTAVAIL);
    REFUSED(rdma_join_multicast_ex(id, NULL, NULL), EINVAL);
    REFUSED(rdma_join_multicast_ex(id, &(struct rdma_cm_join_mc_attr_ex){0}, NULL), EINVAL);
    REFUSED(rdma_migrate_id(NULL, c), EINVAL);
    REFUSED(rdma_migrate_id(id, gone), EINVAL);
    REFUSED(rdma_set_local_ece(id, NULL), EINVAL);
    HOLDS(rdma_set_local_ece(id, &ece) == 0);
    ece.vendor_id = 5;
    REFUSED(rdma_set_local_ece(id, &ece), EOPNOTSUPP);
    REFUSED(rdma_get_remote_ece(id, &ece), EINVAL);

    REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &number, sizeof number), EINVAL);
    REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, NULL, 1), EINVAL);
    REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &byte, 1), EINVAL);
    REFUSED(rdma_set_option(id, RDMA_OPTION_ID, 99, &number, sizeof number), ENOSYS);
    REFUSED(rdma_set_option(id, RDMA_OPTION_IB, RDMA_OPTION_IB_PATH, &number, sizeof number), EOPNOTSUPP);
    HOLDS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &byte, 1) == 0);
    HOLDS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, sizeof number) == 0);
    HOLDS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_AFONLY, &number, sizeof number) == 0);

    REFUSED(rdma_create_qp(id, NULL, NULL), EINVAL);
    REFUSED(rdma_create_qp(id, NULL, &init), EINVAL); // not bound: it has no domain of its own yet
    HOLDS(!id->send_cq && !id->recv_cq && !id->send_cq_channel);
    REFUSED(rdma_create_qp_ex(id, NULL), EINVAL);
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    REFUSED(rdma_create_srq_ex(id, NULL), EINVAL);

    // A wildcard names no device, an address does.
    MUST(rdma_bind_addr(id, ADDR("0.0.0.0", 0)) == 0);
    HOLDS(!id->verbs && rdma_get_src_port(id) != 0 && rdma_get_dst_port(id) == 0);
    HOLDS(((struct sockaddr_in *)rdma_get_local_addr(id))->sin_port == rdma_get_src_port(id));
    REFUSED(rdma_bind_addr(id, ADDR(SELF, 0)), EINVAL);
    MUST(rdma_create_id(c, &other, NULL, RDMA_PS_TCP) == 0);
    MUST(rdma_bind_addr(other, ADDR(SELF, 0)) == 0);
    HOLDS(other->verbs && other->pd && other->pd->context == other->verbs && other->port_num == 1);
    HOLDS(other->route.addr.addr.ibaddr.pkey == htons(0xffff));
    HOLDS(!memcmp(other->route.addr.addr.ibaddr.sgid.raw + 12, &((struct sockaddr_in *)ADDR(SELF, 0))->sin_addr, 4));
    MUST(rdma_listen(other, -1) == 0);
    REFUSED(rdma_listen(other, 1), EINVAL);
    REFUSED(rdma_listen(NULL, 1), EINVAL);
    HOLDS(rdma_get_src_port(NULL) == 0 && rdma_get_dst_port(NULL) == 0);

    REFUSED(rdma_destroy_id(NULL), EINVAL);
    MUST(rdma_destroy_id(id) == 0);
    REFUSED(rdma_destroy_id(id), EINVAL);
    MUST(rdma_destroy_id(other) == 0);
    rdma_destroy_ep(other);
    rdma_destroy_ep(NULL);
    rdma_destroy_event_channel(c);
    REFUSED(rdma_create_ep(&id, NULL, NULL, NULL), EINVAL);
    REFUSED(rdma_create_ep(NULL, &(struct rdma_addrinfo){0}, NULL, NULL), EINVAL);
    REFUSED(rdma_create_ep(&id, &(struct rdma_addrinfo){.ai_port_space = RDMA_PS_TCP}, NULL, NULL), EINVAL);
}

// Brings an identifier to the point where it can connect.
static struct rdma_cm_id *resolved(struct rdma_event_channel *c, enum rdma_port_space ps, uint16_t port) {
    struct rdma_cm_id *id;
    MUST(rdma_create_id(c, &id, NULL, ps) == 0);
    MUST(rdma_resolve_addr(id, NULL, ADDR(SELF, ntohs(port)), PATIENCE_MS) == 0);
    event(c, RDMA_CM_EVENT_ADDR_RESOLVED);
    HOLDS(id->verbs && id->pd && id->port_num == 1 && rdma_get_dst_port(id) == port);
    MUST(rdma_resolve_route(id, PATIENCE_MS) == 0);
    event(c, RDMA_CM_EVENT_ROUTE_RESOLVED);
    HOLDS(id->route.num_paths == 1 && id->route.path_rec && id->route.path_rec->mtu >= IBV_MTU_256);
    return id;
}

static struct rdma_cm_id *listener(struct rdma_event_channel *c, enum rdma_port_space ps, void *context) {
    struct rdma_cm_id *id;
    MUST(rdma_create_id(c, &id, context, ps) == 0);
    MUST(rdma_bind_addr(id, ADDR("0.0.0.0", 0)) == 0 && rdma_listen(id, 8) == 0);
    return id;
}

// The calls of rdma_verbs.h that post, and those that register.
static void every_way_to_post(struct rdma_cm_id *client, struct rdma_cm_id *server, struct ibv_mr *received) {
    char far[64] = "far away", near[64] = "";
    struct ibv_mr *remote = rdma_reg_read(server, far, 32), *writable = rdma_reg_write(server, far + 32, 32);
    struct ibv_mr *local = rdma_reg_msgs(client, near, sizeof near);
    struct ibv_wc wc;
    MUST(remote && writable && local);
    struct ibv_sge list = {.addr = (uintptr_t)near, .length = 16, .lkey = local->lkey};
    MUST(rdma_post_read(client, NULL, near, 16, local, IBV_SEND_SIGNALED, (uintptr_t)far, remote->rkey) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_READ);
    HOLDS(!strcmp(near, "far away"));
    memset(near, 0, sizeof near);
    MUST(rdma_post_readv(client, NULL, &list, 1, IBV_SEND_SIGNALED, (uintptr_t)far, remote->rkey) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    HOLDS(!strcmp(near, "far away"));
    MUST(rdma_post_write(client, NULL, near, 16, local, IBV_SEND_SIGNALED, (uintptr_t)far + 32, writable->rkey) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE);
    MUST(rdma_post_writev(client, NULL, &list, 1, IBV_SEND_SIGNALED, (uintptr_t)far + 48, writable->rkey) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    HOLDS(!strcmp(far + 32, "far away") && !strcmp(far + 48, "far away"));
    struct ibv_sge into = {.addr = (uintptr_t)received->addr, .length = 32, .lkey = received->lkey};
    MUST(rdma_post_recvv(server, &into, &into, 1) == 0);
    MUST(rdma_post_sendv(client, NULL, &list, 1, IBV_SEND_SIGNALED) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    MUST(rdma_get_recv_comp(server, &wc) == 1 && wc.wr_id == (uintptr_t)&into && wc.byte_len == 16);
    HOLDS(!strcmp(received->addr, "far away"));
    into.length = 0xffffffff, list.length = 0xffffffff;
    REFUSED(rdma_post_sendv(client, NULL, &list, 99, 0), EINVAL);
    REFUSED(rdma_post_recvv(server, NULL, &into, -1), EINVAL);
    MUST(rdma_dereg_mr(local) == 0 && rdma_dereg_mr(remote) == 0 && rdma_dereg_mr(writable) == 0);
    REFUSED(rdma_dereg_mr(local), EINVAL);
}

// Shared receive queues of identifiers: one of the plain call, one of the extended one.
static void shared_receive_queues(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *id;
    struct ibv_srq_init_attr init = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq_init_attr_ex ex = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_qp_init_attr qp = sizes();
    MUST(c && rdma_create_id(c, &id, NULL, RDMA_PS_TCP) == 0);
    REFUSED(rdma_create_srq(id, NULL, &init), EINVAL); // not bound: it has no domain
    REFUSED(rdma_create_srq(NULL, NULL, &init), EINVAL);
    MUST(rdma_bind_addr(id, ADDR(SELF, 0)) == 0);
    HOLDS(((struct sockaddr_in *)rdma_get_peer_addr(id))->sin_port == 0);
    REFUSED(rdma_create_srq(id, NULL, NULL), EINVAL);
    HOLDS(!id->srq);
    MUST(rdma_create_srq(id, NULL, &init) == 0 && id->srq && id->srq->pd == id->pd && init.attr.max_wr >= 4);
    REFUSED(rdma_create_srq(id, NULL, &init), EINVAL);
    REFUSED(rdma_create_srq_ex(id, &ex), EINVAL);
    MUST(rdma_create_qp(id, NULL, &qp) == 0 && id->qp->srq == id->srq);
    rdma_destroy_srq(id); // still in use
    HOLDS(id->srq);
    rdma_destroy_qp(id);
    rdma_destroy_srq(id);
    HOLDS(!id->srq);
    ex.comp_mask = 1 << 20;
    REFUSED(rdma_create_srq_ex(id, &ex), EINVAL);
    ex.comp_mask = 0;
    MUST(rdma_create_srq_ex(id, &ex) == 0 && id->srq);
    rdma_destroy_srq(id);
    rdma_destroy_srq(NULL);
    rdma_destroy_qp(NULL);
    MUST(rdma_destroy_id(id) == 0);
    rdma_destroy_event_channel(c);
}

// Every call, with an identifier that is NULL, gone, or no identifier, and with a channel that is gone.
static void handles(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *gone, *to;
    struct ibv_qp_init_attr init = sizes();
    struct ibv_qp_init_attr_ex ex = {.qp_type = IBV_QPT_RC};
    struct ibv_srq_init_attr srq = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct ibv_srq_init_attr_ex srq_ex = {.attr = {.max_wr = 4, .max_sge = 1}};
    struct rdma_conn_param param = {0};
    struct rdma_cm_join_mc_attr_ex join = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, .join_flags = RDMA_MC_JOIN_FLAG_FULLMEMBER, .addr = ADDR("239.1.1.2", 0),
    };
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT};
    struct ibv_ece ece = {0};
    struct rdma_cm_event *event;
    int mask, number = 1;
    MUST(c && rdma_create_id(c, &gone, NULL, RDMA_PS_TCP) == 0 && rdma_destroy_id(gone) == 0);
    struct rdma_cm_id *bad[] = {NULL, gone, (struct rdma_cm_id *)c, (struct rdma_cm_id *)((char *)gone + 1)};
    for (int i = 0; i < 4; i++) {
        struct rdma_cm_id *id = bad[i];
        REFUSED(rdma_bind_addr(id, ADDR(SELF, 0)), EINVAL);
        REFUSED(rdma_resolve_addr(id, NULL, ADDR(SELF, 1), 1), EINVAL);
        REFUSED(rdma_resolve_route(id, 1), EINVAL);
        REFUSED(rdma_listen(id, 1), EINVAL);
        REFUSED(rdma_connect(id, &param), EINVAL);
        REFUSED(rdma_accept(id, &param), EINVAL);
        REFUSED(rdma_reject(id, NULL, 0), EINVAL);
        REFUSED(rdma_reject_ece(id, NULL, 0), EINVAL);
        REFUSED(rdma_establish(id), EINVAL);
        REFUSED(rdma_disconnect(id), EINVAL);
        REFUSED(rdma_notify(id, IBV_EVENT_COMM_EST), EINVAL);
        REFUSED(rdma_init_qp_attr(id, &attr, &mask), EINVAL);
        REFUSED(rdma_get_request(id, &to), EINVAL);
        REFUSED(rdma_join_multicast(id, ADDR("239.1.1.1", 0), NULL), EINVAL);
        REFUSED(rdma_join_multicast_ex(id, &join, NULL), EINVAL);
        REFUSED(rdma_leave_multicast(id, ADDR("239.1.1.1", 0)), EINVAL);
        REFUSED(rdma_migrate_id(id, c), EINVAL);
        REFUSED(rdma_migrate_id(id, NULL), EINVAL);
        REFUSED(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, sizeof number), EINVAL);
        REFUSED(rdma_set_local_ece(id, &ece), EINVAL);
        REFUSED(rdma_get_remote_ece(id, &ece), EINVAL);
        REFUSED(rdma_create_qp(id, NULL, &init), EINVAL);
        REFUSED(rdma_create_qp_ex(id, &ex), EINVAL);
        REFUSED(rdma_create_srq(id, NULL, &srq), EINVAL);
        REFUSED(rdma_create_srq_ex(id, &srq_ex), EINVAL);
        HOLDS(rdma_get_src_port(id) == 0 && rdma_get_dst_port(id) == 0);
        rdma_destroy_qp(id);
        rdma_destroy_srq(id);
        rdma_destroy_ep(id);
        REFUSED(rdma_destroy_id(id), EINVAL);
    }
    REFUSED(rdma_get_cm_event((struct rdma_event_channel *)gone, &event), EINVAL);
    REFUSED(rdma_ack_cm_event((struct rdma_cm_event *)c), EINVAL);
    // Of an identifier that lives, what it is given.
    MUST(rdma_create_id(c, &to, NULL, RDMA_PS_TCP) == 0);
    REFUSED(rdma_create_qp(to, (struct ibv_pd *)c, &init), EINVAL);
    REFUSED(rdma_create_srq(to, (struct ibv_pd *)c, &srq), EINVAL);
    REFUSED(rdma_set_option(to, -1, -1, &number, sizeof number), EINVAL);
    REFUSED(rdma_set_option(to, RDMA_OPTION_ID, RDMA_OPTION_ID_REUSEADDR, &number, SIZE_MAX), EINVAL);
    REFUSED(rdma_get_remote_ece(to, NULL), EINVAL);
    REFUSED(rdma_get_request(to, NULL), EINVAL);
    REFUSED(rdma_join_multicast(to, NULL, NULL), EINVAL);
    REFUSED(rdma_leave_multicast(to, NULL), EINVAL);
    MUST(rdma_destroy_id(to) == 0);
    rdma_destroy_event_channel((struct rdma_event_channel *)gone);
    rdma_destroy_event_channel(c);
}

static void connections(void) {
    int context;
    struct rdma_event_channel *cs = rdma_create_event_channel(), *cc = rdma_create_event_channel();
    struct rdma_cm_id *listen = listener(cs, RDMA_PS_TCP, &context);
    struct rdma_cm_id *client = resolved(cc, RDMA_PS_TCP, rdma_get_src_port(listen)), *server;
    struct ibv_qp_init_attr init = sizes();
    struct rdma_conn_param param = {.private_data = "from the client", .private_data_len = 16, .retry_count = 20, .rnr_retry_count = 7, .responder_resources = 3, .initiator_depth = 2};
    REFUSED(rdma_connect(client, &param), EINVAL); // no queue pair
    MUST(rdma_create_qp(client, NULL, &init) == 0);
    HOLDS(client->qp && client->qp->qp_type == IBV_QPT_RC && client->qp->state == IBV_QPS_INIT && client->qp->pd == client->pd);
    HOLDS(client->send_cq && client->recv_cq && client->send_cq_channel && init.send_cq == client->send_cq);
    HOLDS(init.cap.max_send_wr >= 4 && init.cap.max_inline_data >= 16);
    REFUSED(rdma_create_qp(client, NULL, &init), EINVAL);
    param.private_data_len = 57;
    REFUSED(rdma_connect(client, &param), EINVAL);
    param.private_data_len = 16;
    MUST(rdma_connect(client, &param) == 0);

    struct rdma_cm_event *e = next_event(cs, RDMA_CM_EVENT_CONNECT_REQUEST);
    HOLDS(e->listen_id == listen && e->id != listen && e->id->context == &context && e->id->channel == cs);
    HOLDS(!strcmp(e->param.conn.private_data, "from the client") && e->param.conn.private_data_len == 56);
    HOLDS(e->param.conn.responder_resources == 2 && e->param.conn.initiator_depth == 3);
    HOLDS(e->param.conn.qp_num == client->qp->qp_num);
    server = e->id;
    HOLDS(server->verbs == client->verbs && server->pd && server->port_num == 1 && server->route.num_paths == 1);
    HOLDS(rdma_get_src_port(server) == rdma_get_src_port(listen) && rdma_get_dst_port(server) == rdma_get_src_port(client));
    MUST(rdma_ack_cm_event(e) == 0);
    REFUSED(rdma_ack_cm_event(e), EINVAL);

    struct ibv_qp_init_attr_ex ex = {
        .qp_type = IBV_QPT_RC, .cap = sizes().cap,
        .comp_mask = IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_SEND,
    };
    MUST(rdma_create_qp_ex(server, &ex) == 0);
    HOLDS(ibv_qp_to_qp_ex(server->qp) && ex.pd == server->pd);
    char buffer[64];
    struct ibv_mr *mr = rdma_reg_msgs(server, buffer, sizeof buffer);
    MUST(mr);
    MUST(rdma_post_recv(server, &buffer, buffer, sizeof buffer, mr) == 0);
    param = (struct rdma_conn_param){.private_data = "from the server", .private_data_len = 16, .responder_resources = RDMA_MAX_RESP_RES, .initiator_depth = RDMA_MAX_INIT_DEPTH};
    MUST(rdma_accept(server, &param) == 0);
    REFUSED(rdma_reject(server, NULL, 0), EINVAL);
    e = next_event(cc, RDMA_CM_EVENT_ESTABLISHED);
    HOLDS(e->id == client && e->status == 0 && !strcmp(e->param.conn.private_data, "from the server"));
    HOLDS(client->qp->state == IBV_QPS_RTS);
    MUST(rdma_ack_cm_event(e) == 0);
    event(cs, RDMA_CM_EVENT_ESTABLISHED);
    HOLDS(server->qp->state == IBV_QPS_RTS);
    struct ibv_ece ece = {.vendor_id = 9};
    HOLDS(rdma_get_remote_ece(client, &ece) == 0 && ece.vendor_id == 0);

    struct ibv_wc wc;
    MUST(rdma_post_send(client, NULL, "a message", 10, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
    MUST(rdma_get_send_comp(client, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    MUST(rdma_get_recv_comp(server, &wc) == 1 && wc.status == IBV_WC_SUCCESS && wc.byte_len == 10);
    HOLDS(wc.wr_id == (uintptr_t)&buffer && !strcmp(buffer, "a message"));
    every_way_to_post(client, server, mr);

    MUST(rdma_disconnect(client) == 0);
    event(cc, RDMA_CM_EVENT_DISCONNECTED);
    HOLDS(client->qp->state == IBV_QPS_ERR);
    event(cs, RDMA_CM_EVENT_DISCONNECTED);
    MUST(rdma_disconnect(server) == 0);
    rdma_destroy_qp(client);
    HOLDS(!client->qp && !client->send_cq && !client->recv_cq_channel);
    MUST(rdma_destroy_id(client) == 0);
    MUST(rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(server);

    // A refusal, and nobody.
    client = resolved(cc, RDMA_PS_TCP, rdma_get_src_port(listen));
    init = sizes(); // it named completion queues that are gone
    MUST(rdma_create_qp(client, NULL, &init) == 0 && rdma_connect(client, NULL) == 0);
    e = next_event(cs, RDMA_CM_EVENT_CONNECT_REQUEST);
    server = e->id;
    MUST(rdma_reject(server, "no", 3) == 0 && rdma_ack_cm_event(e) == 0 && rdma_destroy_id(server) == 0);
    e = next_event(cc, RDMA_CM_EVENT_REJECTED);
    HOLDS(e->status == 28 && !strcmp(e->param.conn.private_data, "no"));
    MUST(rdma_ack_cm_event(e) == 0);
    rdma_destroy_ep(client);
    uint16_t port = rdma_get_src_port(listen);
    MUST(rdma_destroy_id(listen) == 0);
    client = resolved(cc, RDMA_PS_TCP, port);
    init = sizes();
    MUST(rdma_create_qp(client, NULL, &init) == 0 && rdma_connect(client, NULL) == 0);
    e = next_event(cc, RDMA_CM_EVENT_REJECTED);
    HOLDS(e->status == 8);
    MUST(rdma_ack_cm_event(e) == 0);
    // Ends with its queue pair, while it was never connected.
    rdma_destroy_ep(client);
    rdma_destroy_event_channel(cs);
    rdma_destroy_event_channel(cc);
}

// A program that makes its queue pairs itself, and brings them up by rdma_init_qp_attr.
static void own_queue_pairs(void) {
    struct rdma_event_channel *c = rdma_create_event_channel(), *other = rdma_create_event_channel();
    struct rdma_cm_id *listen = listener(c, RDMA_PS_TCP, NULL), *id[2];
    struct ibv_qp *qp[2];
    struct ibv_cq *cq;
    struct ibv_qp_init_attr init = sizes();
    struct rdma_cm_event *e;
    id[0] = resolved(c, RDMA_PS_TCP, rdma_get_src_port(listen));
    cq = ibv_create_cq(id[0]->verbs, 16, NULL, NULL, 0);
    MUST(cq);
    init.send_cq = init.recv_cq = cq;
    for (int i = 0; i < 2; i++)
        MUST(qp[i] = ibv_create_qp(id[0]->pd, &init));
    struct rdma_conn_param param = {.qp_num = qp[0]->qp_num, .responder_resources = 1, .initiator_depth = 1};
    MUST(rdma_connect(id[0], &param) == 0);
    e = next_event(c, RDMA_CM_EVENT_CONNECT_REQUEST);
    id[1] = e->id;
    HOLDS(e->param.conn.qp_num == qp[0]->qp_num);
    rdma_ack_cm_event(e);
    // The new identifier moves to another channel.
    MUST(rdma_migrate_id(id[1], other) == 0 && id[1]->channel == other);
    for (int i = 1; i >= 0; i--) {
        for (enum ibv_qp_state s = IBV_QPS_INIT; s <= IBV_QPS_RTS; s++) {
            struct ibv_qp_attr attr = {.qp_state = s};
            int mask;
            MUST(rdma_init_qp_attr(id[i], &attr, &mask) == 0);
            MUST(ibv_modify_qp(qp[i], &attr, mask) == 0 && qp[i]->state == s);
        }
        if (i == 1) {
            param.qp_num = qp[1]->qp_num;
            MUST(rdma_accept(id[1], &param) == 0);
            e = next_event(c, RDMA_CM_EVENT_CONNECT_RESPONSE);
            HOLDS(e->id == id[0] && e->param.conn.qp_num == qp[1]->qp_num);
            rdma_ack_cm_event(e);
        } else {
            MUST(rdma_establish(id[0]) == 0);
        }
    }
    event(other, RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_disconnect(id[1]) == 0);
    event(c, RDMA_CM_EVENT_DISCONNECTED);
    event(other, RDMA_CM_EVENT_DISCONNECTED);
    for (int i = 0; i < 2; i++)
        MUST(ibv_destroy_qp(qp[i]) == 0 && rdma_destroy_id(id[i]) == 0);
    MUST(ibv_destroy_cq(cq) == 0 && rdma_destroy_id(listen) == 0);
    rdma_destroy_event_channel(c);
    rdma_destroy_event_channel(other);
}

// A queue pair is of the identifier that names it: uDAPL makes it with one identifier, and moves it to that of a request. The old
// identifier ends before the new one accepts, or after; in the third round a plain queue pair, still in RESET, is put in.
static void moved_queue_pairs(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *listen = listener(c, RDMA_PS_TCP, NULL), *old, *server;
    for (int round = 0; round < 3; round++) {
        struct rdma_cm_id *client = resolved(c, RDMA_PS_TCP, rdma_get_src_port(listen));
        struct ibv_qp_init_attr init = sizes();
        MUST(rdma_create_qp(client, NULL, &init) == 0);
        MUST(rdma_create_id(c, &old, NULL, RDMA_PS_TCP) == 0 && rdma_bind_addr(old, ADDR(SELF, 0)) == 0);
        struct ibv_cq *cq = ibv_create_cq(old->verbs, 16, NULL, NULL, 0);
        MUST(cq);
        init = sizes();
        init.send_cq = init.recv_cq = cq;
        struct ibv_qp *qp = NULL;
        if (round == 2)
            MUST(qp = ibv_create_qp(old->pd, &init));
        else
            MUST(rdma_create_qp(old, NULL, &init) == 0 && (qp = old->qp));
        MUST(rdma_connect(client, NULL) == 0);
        struct rdma_cm_event *e = next_event(c, RDMA_CM_EVENT_CONNECT_REQUEST);
        server = e->id;
        rdma_ack_cm_event(e);
        server->qp = qp;
        old->qp = NULL;
        if (round == 0)
            MUST(rdma_destroy_id(old) == 0);
        REFUSED(rdma_create_qp(server, NULL, &init), EINVAL);
        MUST(rdma_accept(server, NULL) == 0);
        if (round != 0)
            MUST(rdma_destroy_id(old) == 0);
        e = next_event(c, RDMA_CM_EVENT_ESTABLISHED);
        HOLDS(e->id == client && e->param.conn.qp_num == qp->qp_num);
        rdma_ack_cm_event(e);
        event(c, RDMA_CM_EVENT_ESTABLISHED);
        HOLDS(qp->state == IBV_QPS_RTS && client->qp->state == IBV_QPS_RTS);
        struct ibv_wc wc;
        server->recv_cq = server->send_cq = cq;
        char buffer[16] = "";
        struct ibv_mr *mr = rdma_reg_msgs(server, buffer, sizeof buffer);
        MUST(mr && rdma_post_recv(server, NULL, buffer, sizeof buffer, mr) == 0);
        MUST(rdma_post_send(client, NULL, "moved", 6, NULL, IBV_SEND_INLINE) == 0);
        while (ibv_poll_cq(cq, 1, &wc) == 0)
            ;
        HOLDS(wc.status == IBV_WC_SUCCESS && !strcmp(buffer, "moved"));
        MUST(rdma_disconnect(server) == 0);
        event(c, RDMA_CM_EVENT_DISCONNECTED);
        event(c, RDMA_CM_EVENT_DISCONNECTED);
        HOLDS(qp->state == IBV_QPS_ERR);
        // Taken away, it outlives the identifier.
        server->qp = NULL;
        server->recv_cq = server->send_cq = NULL;
        MUST(rdma_dereg_mr(mr) == 0 && rdma_destroy_id(server) == 0);
        MUST(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
        rdma_destroy_ep(client);
    }
    // A datagram identifier has no use for one of connections.
    struct rdma_cm_id *client = resolved(c, RDMA_PS_TCP, rdma_get_src_port(listen)), *other;
    struct ibv_qp_init_attr init = sizes();
    MUST(rdma_create_qp(client, NULL, &init) == 0);
    other = resolved(c, RDMA_PS_UDP, rdma_get_src_port(listen));
    other->qp = client->qp;
    REFUSED(rdma_connect(other, NULL), EINVAL);
    other->qp = NULL;
    MUST(rdma_destroy_id(other) == 0);
    rdma_destroy_ep(client);
    MUST(rdma_destroy_id(listen) == 0);
    rdma_destroy_event_channel(c);
}

static void datagrams(void) {
    struct rdma_event_channel *c = rdma_create_event_channel();
    struct rdma_cm_id *listen = listener(c, RDMA_PS_UDP, NULL), *server;
    struct rdma_cm_id *client = resolved(c, RDMA_PS_UDP, rdma_get_src_port(listen));
    struct ibv_qp_init_attr init = sizes();
    struct rdma_cm_event *e;
    HOLDS(client->qp_type == IBV_QPT_UD);
    REFUSED(rdma_create_qp(client, NULL, &init), EINVAL);
    init.qp_type = IBV_QPT_UD;
    MUST(rdma_create_qp(client, NULL, &init) == 0 && client->qp->state == IBV_QPS_RTS);
    MUST(rdma_connect(client, &(struct rdma_conn_param){.private_data = "who", .private_data_len = 4}) == 0);
    e = next_event(c, RDMA_CM_EVENT_CONNECT_REQUEST);
    server = e->id;
    HOLDS(!strcmp(e->param.ud.private_data, "who"));
    rdma_ack_cm_event(e);
    init = sizes();
    init.qp_type = IBV_QPT_UD;
    MUST(rdma_create_qp(server, NULL, &init) == 0 && rdma_accept(server, NULL) == 0);
    e = next_event(c, RDMA_CM_EVENT_ESTABLISHED);
    HOLDS(e->param.ud.qp_num == server->qp->qp_num && e->param.ud.qkey == RDMA_UDP_QKEY && e->param.ud.ah_attr.is_global);
    struct ibv_ah *ah = ibv_create_ah(client->pd, &e->param.ud.ah_attr);
    MUST(ah);
    char buffer[128];
    struct ibv_mr *mr = rdma_reg_msgs(server, buffer, sizeof buffer);
    struct ibv_wc wc;
    MUST(mr && rdma_post_recv(server, NULL, buffer, sizeof buffer, mr) == 0);
    MUST(rdma_post_ud_send(client, NULL, "hello", 6, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED, ah, e->param.ud.qp_num) == 0);
    MUST(rdma_get_recv_comp(server, &wc) == 1 && wc.byte_len == 46 && !strcmp(buffer + 40, "hello"));
    rdma_ack_cm_event(e);
    REFUSED(rdma_disconnect(client), EINVAL);

    // Groups, with what the program wants back.
    MUST(rdma_join_multicast(server, ADDR("239.1.1.1", 0), &wrong) == 0);
    e = next_event(c, RDMA_CM_EVENT_MULTICAST_JOIN);
    HOLDS(e->param.ud.private_data == &wrong && e->param.ud.qp_num == 0xffffff);
    rdma_ack_cm_event(e);
    struct rdma_cm_join_mc_attr_ex join = {
        .comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS, .join_flags = 7, .addr = ADDR("239.1.1.2", 0),
    };
    REFUSED(rdma_join_multicast_ex(client, &join, NULL), EINVAL);
    join.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER;
    MUST(rdma_join_multicast_ex(client, &join, &join) == 0);
    e = next_event(c, RDMA_CM_EVENT_MULTICAST_JOIN);
    HOLDS(e->param.ud.private_data == &join);
    rdma_ack_cm_event(e);
    MUST(rdma_leave_multicast(client, ADDR("239.1.1.2", 0)) == 0);
    MUST(rdma_leave_multicast(server, ADDR("239.1.1.1", 0)) == 0);
    REFUSED(rdma_leave_multicast(server, ADDR("239.1.1.1", 0)), EADDRNOTAVAIL);

    MUST(ibv_destroy_ah(ah) == 0 && rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(client);
    rdma_destroy_ep(server);
    MUST(rdma_destroy_id(listen) == 0);
    rdma_destroy_event_channel(c);
}

// Endpoints: calls that wait.
static void *serve(void *listen) {
    struct rdma_cm_id *id;
    char buffer[16] = "";
    struct ibv_wc wc;
    MUST(rdma_get_request(listen, &id) == 0);
    HOLDS(id->event && id->event->event == RDMA_CM_EVENT_CONNECT_REQUEST && id->qp);
    HOLDS(!strcmp(id->event->param.conn.private_data, "knock"));
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    MUST(mr && rdma_post_recv(id, NULL, buffer, sizeof buffer, mr) == 0);
    MUST(rdma_accept(id, NULL) == 0);
    HOLDS(id->event->event == RDMA_CM_EVENT_ESTABLISHED && id->qp->state == IBV_QPS_RTS);
    MUST(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    HOLDS(!strcmp(buffer, "come in"));
    MUST(rdma_disconnect(id) == 0);
    MUST(rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(id);
    return NULL;
}

static void endpoints(void) {
    struct rdma_addrinfo *info, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *listen, *id;
    struct ibv_qp_init_attr init = sizes();
    struct ibv_wc wc;
    pthread_t thread;
    char port[8];
    MUST(rdma_getaddrinfo("0.0.0.0", "0", &hints, &info) == 0);
    MUST(rdma_create_ep(&listen, info, NULL, &init) == 0 && rdma_listen(listen, 1) == 0);
    rdma_freeaddrinfo(info);
    snprintf(port, sizeof port, "%d", ntohs(rdma_get_src_port(listen)));
    MUST(pthread_create(&thread, NULL, serve, listen) == 0);
    MUST(rdma_getaddrinfo(SELF, port, NULL, &info) == 0);
    MUST(rdma_create_ep(&id, info, NULL, &init) == 0);
    HOLDS(id->qp && id->verbs && id->event && id->channel);
    REFUSED(rdma_get_request(id, &id), EINVAL);
    MUST(rdma_connect(id, &(struct rdma_conn_param){.private_data = "knock", .private_data_len = 6, .retry_count = 7}) == 0);
    HOLDS(id->event->event == RDMA_CM_EVENT_ESTABLISHED);
    MUST(rdma_post_send(id, NULL, "come in", 8, NULL, IBV_SEND_INLINE | IBV_SEND_SIGNALED) == 0);
    MUST(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    pthread_join(thread, NULL);
    MUST(rdma_disconnect(id) == 0);
    MUST(rdma_disconnect(id) == 0);
    rdma_destroy_ep(id);
    rdma_destroy_ep(listen);
    // Nobody listens any more.
    init = sizes();
    MUST(rdma_create_ep(&id, info, NULL, &init) == 0);
    REFUSED(rdma_connect(id, NULL), ECONNREFUSED);
    HOLDS(id->event && id->event->event == RDMA_CM_EVENT_REJECTED);
    // It gets a channel: its calls return at once.
    struct rdma_event_channel *c = rdma_create_event_channel();
    MUST(rdma_migrate_id(id, c) == 0 && id->channel == c && !id->event);
    MUST(rdma_migrate_id(id, NULL) == 0 && id->channel && id->channel != c);
    rdma_destroy_event_channel(c);
    rdma_destroy_ep(id);
    rdma_freeaddrinfo(info);
}

static void *wait_for_ever(void *channel) {
    struct rdma_cm_event *e;
    rdma_get_cm_event(channel, &e);
    printf("a channel without events has one\n");
    exit(1);
}

static void *wait_for_a_request(void *listen) {
    struct rdma_cm_id *id;
    rdma_get_request(listen, &id);
    printf("a listener without requests has one\n");
    exit(1);
}

static void *wait_for_a_descriptor(void *unused) {
    struct pollfd none = {.fd = -1};
    (void)unused;
    rpoll(&none, 1, -1);
    printf("nothing has happened to no descriptor\n");
    exit(1);
}

// Threads that wait for what does not come are cancelled, and everything goes on.
static void cancel(void *(*wait)(void *), void *argument, int patient) {
    void *result;
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, wait, argument) == 0);
    if (patient)
        usleep(1000); // before it waits, or while it does: both are right
    MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    HOLDS(result == PTHREAD_CANCELED);
}

static void cancellation(void) {
    struct rdma_addrinfo *info, hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP};
    struct rdma_cm_id *listen;
    MUST(rdma_getaddrinfo("0.0.0.0", "0", &hints, &info) == 0);
    MUST(rdma_create_ep(&listen, info, NULL, NULL) == 0 && rdma_listen(listen, 1) == 0);
    rdma_freeaddrinfo(info);
    for (int i = 0; i < 10; i++) {
        cancel(wait_for_a_request, listen, i % 2);
        cancel(wait_for_a_descriptor, NULL, i % 2);
    }
    rdma_destroy_ep(listen);
    for (int i = 0; i < 20; i++) {
        struct rdma_event_channel *c = rdma_create_event_channel();
        MUST(c);
        cancel(wait_for_ever, c, i % 2);
        rdma_destroy_event_channel(c);
    }
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    without_a_device();
    names();
    names_of_programs();
    names_with_events();
    devices();
    refusals();
    handles();
    shared_receive_queues();
    connections();
    own_queue_pairs();
    moved_queue_pairs();
    datagrams();
    endpoints();
    cancellation();
    return wrong > 100 ? 100 : wrong;
}
