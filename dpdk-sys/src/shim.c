/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
/* net_memif's listening sockets are known to DPDK by handles whose accessors are not public in every release. */
#define ALLOW_EXPERIMENTAL_API
#define ALLOW_INTERNAL_API
#include "shim.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <unistd.h>

#include <rte_alarm.h>
#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_interrupts.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_pause.h>
#include <rte_version.h>

_Static_assert(sizeof(dpdk_sys_frame) == 32, "a frame has 32 bytes");
_Static_assert(DPDK_SYS_LCORE_NONE == LCORE_ID_ANY, "no lcore");
_Static_assert(DPDK_SYS_PORTS_MAX <= RTE_MAX_ETHPORTS, "each port has a gate");

/* Set in a forked child, where the parent's queues, pools and threads must not be touched. */
static int forked;

/* ---- gates ---- */

/* A burst says that it is inside with a plain store and looks whether the gate is closed, with a light fence between
 * the two; whoever closes the gate does the reverse with a heavy one. A locked instruction instead would wait for the
 * stores of the burst before, which on shared memory take as long as a cache line between two cores. */
static struct {
	uint8_t inside, closed;
} __attribute__((aligned(64))) gates[DPDK_SYS_PORTS_MAX][DPDK_SYS_QUEUES_MAX] = {
	[0 ... DPDK_SYS_PORTS_MAX - 1] = { [0 ... DPDK_SYS_QUEUES_MAX - 1] = { 0, 1 } }
};

uint8_t *
dpdk_sys_gate(uint16_t port, uint16_t queue)
{
	return &gates[port][queue].inside;
}

/* The heavy side of the fence whose light side is with the bursts; both are the caller's. */
static void (*heavy_fence)(void);

/* A burst takes microseconds, unless its thread lost the CPU: leave ours to it then. */
static inline void
wait_a_little(unsigned int spins)
{
	if (spins < 1000)
		rte_pause();
	else
		sched_yield();
}

void
dpdk_sys_gates_close(uint16_t port)
{
	for (int q = 0; q < DPDK_SYS_QUEUES_MAX; q++)
		__atomic_store_n(&gates[port][q].closed, 1, __ATOMIC_RELAXED);
	heavy_fence();
	for (int q = 0; q < DPDK_SYS_QUEUES_MAX; q++)
		for (unsigned int spins = 0; __atomic_load_n(&gates[port][q].inside, __ATOMIC_ACQUIRE); spins++)
			wait_a_little(spins);
}

void
dpdk_sys_gates_open(uint16_t port, uint16_t n)
{
	for (int q = 0; q < n && q < DPDK_SYS_QUEUES_MAX; q++)
		__atomic_store_n(&gates[port][q].closed, 0, __ATOMIC_RELEASE);
}

/* ---- memif's rings ---- */

/* A ring as the memif protocol lays it out. The producer of a C2S ring moves head, of an S2C ring tail; all counters
 * wrap at 2^16. */
struct ring_desc {
	uint16_t flags;
	uint16_t region;
	uint32_t length;
	uint32_t offset;
	uint32_t metadata;
};
struct ring {
	uint32_t cookie;
	uint16_t flags;
	uint16_t head;
	uint8_t pad[56];
	uint16_t tail;
	uint8_t pad2[62];
	struct ring_desc desc[];
};
_Static_assert(offsetof(struct ring, tail) == 64 && sizeof(struct ring) == 128, "as the memif protocol says");

#define RING_COOKIE 0x3E31F20u
#define RING_POLLED 1u /* flags: the consumer wants no interrupts */
#define DESC_NEXT 1u   /* flags: the frame goes on in the next slot */

enum { VIEW_NONE, VIEW_CONNECTING, VIEW_RINGS };

/* What is known of a memif's connection. DPDK's own functions move a burst unless `state` is VIEW_RINGS; then they are
 * not called, as a receive position is the caller's own. Written on the interrupt thread alone, while no burst of the
 * port runs; a burst is inside its gate while it uses one. */
static struct view {
	uint8_t state;
	uint8_t client;
	uint8_t log2;
	uint8_t queues;     /* 0: this port is no memif */
	uint32_t room;      /* bytes of a buffer of ours */
	uint8_t *base;      /* region 0 */
	size_t size;
	struct {
		const uint8_t *ahead; /* buffer of the slot received next, where the ring was found empty; else NULL */
		uint16_t next;        /* slot received next */
		uint16_t sent;        /* slot sent in next: what the ring says, too, in a line that the receiver looks at */
		uint16_t free_end;    /* behind the last slot that is known to be free to send in */
	} __attribute__((aligned(64))) of[DPDK_SYS_QUEUES_MAX];
} __attribute__((aligned(64))) views[DPDK_SYS_PORTS_MAX];

#ifdef DPDK_SYS_GUARDED
/* Waits for the bursts that run in the ports first..end. */
static void
wait_for_bursts(int first, int end)
{
	heavy_fence();
	for (int p = first; p < end; p++)
		for (int q = 0; q < DPDK_SYS_QUEUES_MAX; q++)
			for (unsigned int spins = 0; __atomic_load_n(&gates[p][q].inside, __ATOMIC_ACQUIRE); spins++)
				wait_a_little(spins);
}

/* Regions that memifs have mapped, and for which device: a driver's own structure, nothing of which is known here. On
 * the interrupt thread and DPDK's own, hence the lock. */
static pthread_mutex_t mapped_lock = PTHREAD_MUTEX_INITIALIZER;
static struct mapping {
	void *addr;
	size_t size;
	const void *dev;
	uint64_t when;
} mapped[4 * DPDK_SYS_PORTS_MAX];
/* The device whose regions this thread maps. */
static __thread const void *mapping_for;

void *dpdk_sys_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset);

/* Bytes of a huge page, and of the largest region that is filled to have some: its size is the peer's word. */
#define HUGE_BYTES ((size_t)2 << 20)
#define HUGE_MOST ((size_t)256 << 20)
/* What older headers do not name: Linux 6.1. */
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

/* Maps memory that begins with a huge page, and makes it one of huge pages where the kernel can: each buffer of a ring
 * begins on another small page, more of them than a core remembers translations of. */
static void *
map_huge(size_t len, int prot, int flags, int fd, off_t offset)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), whole = (len + page - 1) & ~(page - 1);
	uint8_t *room = mmap(NULL, whole + HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (room == MAP_FAILED)
		return mmap(NULL, len, prot, flags, fd, offset);
	size_t before = -(uintptr_t)room & (HUGE_BYTES - 1);
	/* Populated: pages that are not there cannot become a huge one. */
	void *at = mmap(room + before, len, prot, flags | MAP_FIXED | MAP_POPULATE, fd, offset);
	if (at == MAP_FAILED) {
		munmap(room, whole + HUGE_BYTES);
		return at;
	}
	if (before > 0)
		munmap(room, before);
	munmap(room + before + whole, HUGE_BYTES - before);
	madvise(at, len, MADV_COLLAPSE); /* if it fails, only speed differs */
	return at;
}

/* net_memif calls this instead of mmap (see build.rs): remembers where the regions are. */
void *
dpdk_sys_mmap(void *addr, size_t len, int prot, int flags, int fd, off_t offset)
{
	static uint64_t now;
	void *at = addr == NULL && len >= HUGE_BYTES && len <= HUGE_MOST && (flags & MAP_SHARED) != 0
			? map_huge(len, prot, flags, fd, offset)
			: mmap(addr, len, prot, flags, fd, offset);

	pthread_mutex_lock(&mapped_lock);
	for (size_t i = 0; at != MAP_FAILED && i < RTE_DIM(mapped); i++)
		if (mapped[i].addr == NULL) {
			mapped[i] = (struct mapping){ .addr = at, .size = len, .dev = mapping_for, .when = now++ };
			break;
		}
	pthread_mutex_unlock(&mapped_lock);
	return at;
}

void *dpdk_sys_mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t offset);

/* The same, as it is called where the driver was built for large files. */
void *
dpdk_sys_mmap64(void *addr, size_t len, int prot, int flags, int fd, off64_t offset)
{
	return dpdk_sys_mmap(addr, len, prot, flags, fd, (off_t)offset);
}

int dpdk_sys_munmap(void *addr, size_t len);

/* net_memif calls this instead of munmap. It has cleared its "connected" flag before, and here goes our own view, so a
 * burst that starts from now on does not touch the memory; one that runs is waited for. */
int
dpdk_sys_munmap(void *addr, size_t len)
{
	for (int p = 0; p < DPDK_SYS_PORTS_MAX; p++)
		if (views[p].state == VIEW_RINGS && views[p].base == addr)
			__atomic_store_n(&views[p].state, VIEW_NONE, __ATOMIC_RELAXED);
	wait_for_bursts(0, DPDK_SYS_PORTS_MAX);
	pthread_mutex_lock(&mapped_lock);
	for (size_t i = 0; i < RTE_DIM(mapped); i++)
		if (mapped[i].addr == addr)
			mapped[i].addr = NULL;
	pthread_mutex_unlock(&mapped_lock);
	return munmap(addr, len);
}

/* The region that was mapped first for a device: region 0. */
static struct mapping
first_region(const void *dev)
{
	struct mapping first = { .when = UINT64_MAX };

	pthread_mutex_lock(&mapped_lock);
	for (size_t i = 0; i < RTE_DIM(mapped); i++)
		if (mapped[i].addr != NULL && mapped[i].dev == dev && mapped[i].when < first.when)
			first = mapped[i];
	pthread_mutex_unlock(&mapped_lock);
	return first;
}

/* Finds the rings of a new connection: in region 0, from its start, those from client to server first, as DPDK lays
 * them out. Of another layout nothing is known, and the driver's own functions are used. */
static int
find_rings(struct view *v, const void *dev)
{
	struct mapping region = first_region(dev);
	uint8_t *base = region.addr;

	for (uint32_t log2 = 1; base != NULL && log2 <= 14; log2++) {
		size_t stride = sizeof(struct ring) + (sizeof(struct ring_desc) << log2);
		uint32_t found = 0;
		while (found < 2u * v->queues && (found + 1) * stride <= region.size &&
		       ((struct ring *)(base + found * stride))->cookie == RING_COOKIE)
			found++;
		if (found < 2u * v->queues)
			continue;
		v->base = base;
		v->size = region.size;
		v->log2 = (uint8_t)log2;
		/* The client wrote this a moment ago; the server does not use it. */
		v->room = ((struct ring *)base)->desc[0].length;
		for (uint32_t q = 0; q < v->queues; q++) {
			const struct ring *tx = (struct ring *)(base + (q + (v->client ? 0u : v->queues)) * stride);
			v->of[q].next = 0;
			v->of[q].ahead = NULL;
			v->of[q].sent = v->of[q].free_end = v->client ? tx->head : tx->tail;
		}
		return 1;
	}
	return 0;
}

struct rte_eth_dev;
int memif_init_regions_and_queues(struct rte_eth_dev *dev);
int __wrap_memif_init_regions_and_queues(struct rte_eth_dev *dev);
int memif_connect(struct rte_eth_dev *dev);
int __wrap_memif_connect(struct rte_eth_dev *dev);

/* A client calls this instead of memif_init_regions_and_queues, which maps its region. */
int
__wrap_memif_init_regions_and_queues(struct rte_eth_dev *dev)
{
	mapping_for = dev;
	int ret = memif_init_regions_and_queues(dev);
	mapping_for = NULL;
	return ret;
}

/* Client and server call this instead of memif_connect, on the interrupt thread, one connection at a time. No burst must
 * run between the connection and the decision who moves its bursts. Which port it is shows when its link comes up. */
int
__wrap_memif_connect(struct rte_eth_dev *dev)
{
	for (uint16_t p = 0; p < DPDK_SYS_PORTS_MAX; p++)
		if (views[p].queues > 0 && !dpdk_sys_port_link(p))
			__atomic_store_n(&views[p].state, VIEW_CONNECTING, __ATOMIC_RELAXED);
	wait_for_bursts(0, DPDK_SYS_PORTS_MAX);
	mapping_for = dev;
	int ret = memif_connect(dev);
	mapping_for = NULL;
	for (uint16_t p = 0; p < DPDK_SYS_PORTS_MAX; p++) {
		struct view *v = &views[p];
		if (v->state != VIEW_CONNECTING)
			continue;
		int known = ret == 0 && dpdk_sys_port_link(p) && find_rings(v, dev);
		__atomic_store_n(&v->state, known ? VIEW_RINGS : VIEW_NONE, __ATOMIC_RELEASE);
	}
	return ret;
}

ssize_t dpdk_sys_sendmsg(int fd, const struct msghdr *message, int flags);

/* net_memif calls this instead of sendmsg. When greeting a client fails, the driver closes the socket while its
 * handler stays registered, and the interrupt thread panics over the closed file. So a message to a peer that is
 * gone counts as sent: the end of file that follows takes the driver's orderly way out. */
ssize_t
dpdk_sys_sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t sent = sendmsg(fd, message, flags | MSG_NOSIGNAL);

	if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
		sent = 0;
		for (size_t i = 0; i < message->msg_iovlen; i++)
			sent += (ssize_t)message->msg_iov[i].iov_len;
	}
	return sent;
}

int dpdk_sys_connect(int fd, const struct sockaddr *address, socklen_t len);

/* net_memif calls this instead of connect, on the interrupt thread. A listening socket takes two connections that nobody
 * has accepted; the next one would wait, for a server that stands still, or for ever if this very thread is to accept it,
 * and every port with it. So connecting fails then (EAGAIN), and is tried again later as if nobody listened. */
int
dpdk_sys_connect(int fd, const struct sockaddr *address, socklen_t len)
{
	int flags = fcntl(fd, F_GETFL);
	int result;

	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
		return -1;
	result = connect(fd, address, len);
	if (result == 0 && fcntl(fd, F_SETFL, flags) < 0)
		return -1;
	return result;
}

ssize_t dpdk_sys_recvmsg(int fd, struct msghdr *message, int flags);

/* net_memif calls this instead of recvmsg. The interrupt thread finds a handler by the number of a file: after one
 * connection was closed and another opened, an old event may reach the new handler, which must not wait for a
 * message then, least of all one from a port that this thread serves too. */
ssize_t
dpdk_sys_recvmsg(int fd, struct msghdr *message, int flags)
{
	return recvmsg(fd, message, flags | MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
}

int dpdk_sys_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg);
void dpdk_sys_intr_instance_free(struct rte_intr_handle *handle);

/* Listening sockets of memif servers. On the interrupt thread and DPDK's own, hence the lock. */
static pthread_mutex_t listeners_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	const struct rte_intr_handle *handle;
	rte_intr_callback_fn fn;
	void *arg;
} listeners[DPDK_SYS_PORTS_MAX];

/* net_memif calls this instead of rte_intr_callback_register: remembers the handlers of listening sockets. */
int
dpdk_sys_intr_callback_register(const struct rte_intr_handle *handle, rte_intr_callback_fn fn, void *arg)
{
	int listens = 0;
	socklen_t size = sizeof(listens);
	int ret = rte_intr_callback_register(handle, fn, arg);

	if (ret == 0 && getsockopt(rte_intr_fd_get(handle), SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
	    listens) {
		pthread_mutex_lock(&listeners_lock);
		for (int i = 0; i < DPDK_SYS_PORTS_MAX; i++) {
			if (listeners[i].handle == NULL) {
				listeners[i].handle = handle;
				listeners[i].fn = fn;
				listeners[i].arg = arg;
				break;
			}
		}
		pthread_mutex_unlock(&listeners_lock);
	}
	return ret;
}

/* net_memif calls this instead of rte_intr_instance_free. DPDK 22.11 frees the handle of a listening socket without
 * unregistering its handler or closing it: a connection would call the handler with freed memory. */
void
dpdk_sys_intr_instance_free(struct rte_intr_handle *handle)
{
	rte_intr_callback_fn fn = NULL;
	void *arg = NULL;

	pthread_mutex_lock(&listeners_lock);
	for (int i = 0; i < DPDK_SYS_PORTS_MAX; i++) {
		if (handle != NULL && listeners[i].handle == handle) {
			fn = listeners[i].fn;
			arg = listeners[i].arg;
			listeners[i].handle = NULL;
		}
	}
	pthread_mutex_unlock(&listeners_lock);
	if (fn != NULL && rte_intr_callback_unregister(handle, fn, arg) > 0)
		close(rte_intr_fd_get(handle));
	rte_intr_instance_free(handle);
}
#endif /* DPDK_SYS_GUARDED */

/* ---- data path ---- */

/* The mempool's per-lcore cache goes by the thread's lcore id. The queue lends its reserved id to the calling
 * thread for the time of one call, so no two threads can ever use one cache at once. */
static inline unsigned int
lcore_enter(uint32_t lcore)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);
	RTE_PER_LCORE(_lcore_id) = lcore;
	return before;
}

static inline void
lcore_leave(unsigned int before)
{
	RTE_PER_LCORE(_lcore_id) = before;
}

static inline void
frame_of(dpdk_sys_frame *f, struct rte_mbuf *m, const void *kind, uint32_t len)
{
	f->data = rte_pktmbuf_mtod(m, void *);
	f->len = (uint16_t)len;
	f->cap = m->buf_len - m->data_off;
	f->sum = 0;
	f->handle = m;
	f->kind = kind;
}

/* Takes n mbufs from the pool, all or none. What a pool holds is one segment, referred to once: what else there is to know
 * about a frame is written when it is received, or sent. */
static inline int
take_mbufs(const dpdk_sys_queue *q, struct rte_mbuf **mbufs, uint32_t n)
{
	int ret = rte_mempool_get_bulk(q->pool, (void **)mbufs, n);

	for (uint32_t i = 0; ret == 0 && i < n; i++)
		mbufs[i]->data_off = RTE_PKTMBUF_HEADROOM;
	return ret;
}

/* Gives mbufs back to their pool. Those of a memif are as they were taken: all that is looked at is in the line that has the
 * length, where the general way goes through the next one too. */
static inline void
put_mbufs(const dpdk_sys_queue *q, struct rte_mbuf **mbufs, uint32_t n)
{
	int plain = 1;

	for (uint32_t i = 0; i < n; i++)
		plain &= mbufs[i]->pool == q->pool && rte_mbuf_refcnt_read(mbufs[i]) == 1 && mbufs[i]->nb_segs == 1 &&
			 RTE_MBUF_DIRECT(mbufs[i]);
	if (likely(plain))
		rte_mempool_put_bulk(q->pool, (void **)mbufs, n);
	else
		rte_pktmbuf_free_bulk(mbufs, n);
}

/* Ring of a queue. */
static inline struct ring *
ring_of(const struct view *v, const dpdk_sys_queue *q, int to_server)
{
	size_t stride = sizeof(struct ring) + (sizeof(struct ring_desc) << v->log2);
	return (struct ring *)(v->base + (q->queue + (to_server ? 0u : v->queues)) * stride);
}

/* The buffer of a slot, if `len` bytes of it are inside of the region: the peer writes descriptors too. */
static inline uint8_t *
slot_buffer(const struct view *v, const struct ring_desc *d, uint32_t len)
{
	uint32_t offset = __atomic_load_n(&d->offset, __ATOMIC_RELAXED);

	if (unlikely(d->region != 0 || (uint64_t)offset + len > v->size))
		return NULL;
	return v->base + offset;
}

/* Bytes that are copied between two rounds of asking for the next buffer. */
#define PIECE 512u

/* Frames up to so long are summed by who checks them: quicker than while they are copied. */
#define SUM_ABOVE 256u

/* What short frames are copied by. */
#define WHOLE 16u

/* Copies a multiple of that many bytes, front to back. */
static inline void
copy_whole(uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	for (uint32_t i = 0; i < bytes; i += WHOLE)
		rte_mov16(to + i, from + i);
}

/* Copies a buffer that is in another core's cache, and asks for as much of the next one meanwhile: hardware looks ahead
 * only to the end of a page. Returns the sum where that comes with the copy, and 0 otherwise. */
static inline uint32_t
copy_ahead(const dpdk_sys_queue *q, uint8_t *to, const uint8_t *from, uint32_t len, const uint8_t *next)
{
	if (q->copy != NULL && len > SUM_ABOVE)
		return q->copy(to, from, len, next);
	while (len > 0) {
		uint32_t n = len < PIECE ? len : PIECE;
		if (next != NULL) {
			for (uint32_t i = 0; i < n; i += 64)
				rte_prefetch1(next + i);
			next += n;
		}
		memcpy(to, from, n);
		to += n;
		from += n;
		len -= n;
	}
	return 0;
}

/* One mbuf for each of n frames, or for as many as there are. */
static uint32_t
alloc_mbufs(const dpdk_sys_queue *q, struct rte_mbuf **mbufs, uint32_t n)
{
	if (likely(take_mbufs(q, mbufs, n) == 0))
		return n;
	for (uint32_t i = 0; i < n; i++) {
		mbufs[i] = rte_pktmbuf_alloc(q->pool);
		if (mbufs[i] == NULL)
			return i;
	}
	return n;
}

/* Gives the slots whose frames were received back to the sender. Not where they are received: whatever is stored after this
 * waits until the sender's core has let go of the line, and there may be an answer to send first. */
static inline void
give_back(const struct view *v, const dpdk_sys_queue *q)
{
	struct ring *ring = ring_of(v, q, !v->client);
	uint32_t size = 1u << v->log2, mask = size - 1;
	uint16_t next = v->of[q->queue].next, end = (uint16_t)(next + size);
	uint16_t head = v->client ? ring->head : (uint16_t)(ring->tail + size);

	if (head == end)
		return;
	if (!v->client) {
		__atomic_store_n(&ring->tail, next, __ATOMIC_RELEASE);
		return;
	}
	/* The client gives the server empty buffers. */
	for (; head != end; head++)
		ring->desc[head & mask].length = v->room;
	__atomic_store_n(&ring->head, end, __ATOMIC_RELEASE);
}

void
dpdk_sys_give_back(const dpdk_sys_queue *q)
{
	const struct view *v = &views[q->port];

	if (__atomic_load_n(&v->state, __ATOMIC_ACQUIRE) == VIEW_RINGS)
		give_back(v, q);
}

/* The slot to send in that is `i` behind the next one. */
static inline struct ring_desc *
tx_desc(const struct view *v, const dpdk_sys_queue *q, struct ring *ring, uint32_t i)
{
	return &ring->desc[(v->of[q->queue].sent + i) & ((1u << v->log2) - 1)];
}

/* Short frames that are asked for before the one that is copied: so many lines come from the other core at a time. */
#define SHORT_AHEAD 8u

/* Asks for a frame, if it is a short one. */
static inline void
ask_for_short(const struct view *v, const struct ring_desc *d)
{
	uint32_t len = __atomic_load_n(&d->length, __ATOMIC_RELAXED);
	const uint8_t *from = slot_buffer(v, d, len);

	if (from != NULL && len <= SUM_ABOVE)
		for (uint32_t i = 0; i < len; i += 64)
			rte_prefetch0(from + i);
}

/* Copies what a slot holds to an mbuf, if it is all of a short frame; its length then, and 0 otherwise. Goes by whole pieces:
 * behind the frame in the mbuf are up to 15 bytes of what is behind it in the slot. */
static inline uint32_t
copy_short(const struct view *v, const struct ring_desc *d, struct rte_mbuf *m)
{
	uint32_t len = __atomic_load_n(&d->length, __ATOMIC_RELAXED), whole = RTE_ALIGN_CEIL(len, WHOLE);
	const uint8_t *from = len <= SUM_ABOVE && (d->flags & DESC_NEXT) == 0 ? slot_buffer(v, d, whole) : NULL;
	uint8_t *to = rte_pktmbuf_mtod(m, uint8_t *);

	if (unlikely(from == NULL || whole + m->data_off > m->buf_len))
		return 0;
	copy_whole(to, from, whole);
	return len;
}

/* Copies the frame that begins in slot `*next` to an mbuf and goes on behind it; `*slots` are there. Nothing if it does not
 * fit, or has no end. */
static inline int
copy_frame(const struct view *v, const dpdk_sys_queue *q, const struct ring *ring, uint16_t *next, uint16_t *slots,
	   struct rte_mbuf *m, uint32_t *len, uint32_t *sum)
{
	uint16_t mask = (uint16_t)((1u << v->log2) - 1);
	uint8_t *to = rte_pktmbuf_mtod(m, uint8_t *);
	uint32_t cap = (uint32_t)m->buf_len - m->data_off;
	int fits = 1, more;

	*len = 0;
	*sum = 0;
	do {
		const struct ring_desc *d = &ring->desc[*next & mask];
		uint32_t piece = __atomic_load_n(&d->length, __ATOMIC_RELAXED);
		const uint8_t *from = slot_buffer(v, d, piece);
		more = (d->flags & DESC_NEXT) != 0;
		++*next;
		--*slots;
		fits = fits && from != NULL && piece <= cap - *len;
		if (likely(fits)) {
			const struct ring_desc *after = &ring->desc[*next & mask];
			uint32_t copied = copy_ahead(q, to + *len, from, piece,
						     *slots > 0 ? slot_buffer(v, after, piece) : NULL);
			/* That of a frame in several pieces is not known. */
			*sum = *len == 0 && !more ? copied : 0;
			*len += piece;
		}
	} while (unlikely(more) && *slots > 0);
	return fits && !more;
}

/* Receives from a memif's ring. */
static void
ring_rx(struct view *v, const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t room, dpdk_sys_burst *result)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	struct ring *ring = ring_of(v, q, !v->client);
	uint16_t size = (uint16_t)(1u << v->log2), mask = size - 1, next = v->of[q->queue].next;
	const uint8_t *ahead = v->of[q->queue].ahead;
	uint64_t bytes = 0;
	uint32_t frames = 0, dropped = 0;

	give_back(v, q);
	if (ahead != NULL) {
		/* A frame that comes alone is three lines or four that the sender has, each telling where the next one is. Asked
		 * for together, they come together; while nothing is sent they are here, and asking costs nothing. */
		rte_prefetch0(&ring->desc[next & mask]);
		rte_prefetch0(ahead);
		rte_prefetch0(ahead + 64);
	}
	uint16_t published = __atomic_load_n(v->client ? &ring->tail : &ring->head, __ATOMIC_ACQUIRE);
	uint16_t slots = published - next;
	uint32_t n = slots < room ? slots : room;

	if (n == 0 || slots > size) {
		if (ahead == NULL)
			v->of[q->queue].ahead = slot_buffer(v, &ring->desc[next & mask], 128);
		*result = (dpdk_sys_burst){ 0 };
		return;
	}
	/* Frames that come together are mostly of one length. */
	uint32_t first = __atomic_load_n(&ring->desc[next & mask].length, __ATOMIC_RELAXED);
	int brief = first <= SUM_ABOVE;
	if (n > 1) {
		uint32_t near = DPDK_SYS_BURST_BYTES / (first > 0 ? first : 1) + 1;
		n = n < near ? n : near;
	}
	n = alloc_mbufs(q, mbufs, n);
	for (uint32_t i = 0; brief && i < n && i < SHORT_AHEAD; i++)
		ask_for_short(v, &ring->desc[(next + i) & mask]);
	uint32_t used = 0;
	while (used < n && slots > 0) {
		struct rte_mbuf *m = mbufs[used];

		if (brief && slots > SHORT_AHEAD)
			ask_for_short(v, &ring->desc[(next + SHORT_AHEAD) & mask]);
		uint32_t len = brief ? copy_short(v, &ring->desc[next & mask], m) : 0, sum = 0;
		if (likely(len > 0)) {
			next++;
			slots--;
		} else if (!copy_frame(v, q, ring, &next, &slots, m, &len, &sum)) {
			dropped++;
			continue; /* the mbuf takes the next one */
		}
		m->data_len = (uint16_t)len;
		m->pkt_len = len;
		m->port = q->port;
		frame_of(&out[frames], m, q->kind, len);
		out[frames].sum = sum;
		bytes += len;
		frames++;
		used++;
	}
	if (unlikely(used < n))
		rte_pktmbuf_free_bulk(mbufs + used, n - used);
	v->of[q->queue].next = next;
	v->of[q->queue].ahead = NULL;
	/* What came is likely to be answered: a line that the receiver of our frames looks at, and one with a descriptor. */
	struct ring *tx = ring_of(v, q, v->client);
	rte_prefetch0(tx);
	rte_prefetch0(tx_desc(v, q, tx, 0));
	result->bytes = bytes;
	result->frames = frames;
	result->dropped = dropped;
}

/* The ring that a memif's queue sends on, and how many slots from `sent` on are free: those that are known of, where they are
 * as many as wanted, as a look at how far the receiver is costs a line. NULL if the peer wants to be interrupted, which is
 * the driver's business. */
static inline struct ring *
ring_tx(struct view *v, const dpdk_sys_queue *q, uint32_t wanted, uint32_t *slots)
{
	struct ring *ring = ring_of(v, q, v->client);
	uint32_t size = 1u << v->log2;
	uint16_t first = v->of[q->queue].sent, *end = &v->of[q->queue].free_end, n = *end - first;

	if (unlikely((ring->flags & RING_POLLED) == 0))
		return NULL;
	if (n < wanted || n > size) {
		*end = v->client ? (uint16_t)(__atomic_load_n(&ring->tail, __ATOMIC_ACQUIRE) + size)
				 : __atomic_load_n(&ring->head, __ATOMIC_ACQUIRE);
		n = *end - first;
	}
	*slots = n <= size ? n : 0;
	return ring;
}

static inline void
ring_publish(struct view *v, const dpdk_sys_queue *q, struct ring *ring, uint32_t n)
{
	uint16_t end = v->of[q->queue].sent += (uint16_t)n;

	__atomic_store_n(v->client ? &ring->head : &ring->tail, end, __ATOMIC_RELEASE);
}

/* The driver sent on a ring: its slots are no longer those that we know of. */
static inline void
ring_moved(struct view *v, const dpdk_sys_queue *q)
{
	const struct ring *ring = ring_of(v, q, v->client);

	v->of[q->queue].sent = v->of[q->queue].free_end = v->client ? ring->head : ring->tail;
}

/* The buffer of a free slot, if it holds a frame of `len` bytes. */
static inline uint8_t *
free_buffer(const struct view *v, const struct ring_desc *d, uint32_t len)
{
	uint32_t room = v->client ? v->room : __atomic_load_n(&d->length, __ATOMIC_RELAXED);
	return likely(len <= room) ? slot_buffer(v, d, len) : NULL;
}

int32_t
dpdk_sys_tx_slots(const dpdk_sys_queue *q, void **buffers, uint32_t wanted)
{
	struct view *v = &views[q->port];
	struct ring *ring = NULL;
	uint32_t n, slots = 0;

	if (__atomic_load_n(&v->state, __ATOMIC_ACQUIRE) == VIEW_RINGS)
		ring = ring_tx(v, q, wanted, &slots);
	if (ring == NULL)
		return -1;
	for (n = 0; n < wanted && n < slots; n++) {
		buffers[n] = free_buffer(v, tx_desc(v, q, ring, n), q->max_len);
		if (unlikely(buffers[n] == NULL)) /* the peer broke it */
			break;
	}
	return (int32_t)n;
}

/* Says that a slot holds a frame of `len` bytes. Where it held one of that length before, the line stays where it is: with both
 * ends. */
static inline void
describe(struct ring_desc *d, uint32_t len)
{
	if (__atomic_load_n(&d->length, __ATOMIC_RELAXED) != len)
		__atomic_store_n(&d->length, len, __ATOMIC_RELAXED);
	if (__atomic_load_n(&d->flags, __ATOMIC_RELAXED) != 0)
		__atomic_store_n(&d->flags, 0, __ATOMIC_RELAXED);
}

void
dpdk_sys_tx_publish(const dpdk_sys_queue *q, const uint32_t *lens, uint32_t n)
{
	struct view *v = &views[q->port];
	struct ring *ring = ring_of(v, q, v->client);

	for (uint32_t i = 0; i < n; i++)
		describe(tx_desc(v, q, ring, i), lens[i]);
	ring_publish(v, q, ring, n);
}

/* A frame up to so long is copied to a slot in whole pieces, one behind the other. */
#define SHORT_BYTES 512u

/* Copies a frame to the buffer of a slot: NULL if it does not fit. The receiver has the lines that are written, and a core gets
 * them one after the other: memcpy, which stores the two ends of what is short and lets them overlap, asks for some of them
 * twice. Behind the frame are up to 15 bytes of the mbuf that it came in. */
static inline uint8_t *
to_slot(const struct view *v, const struct ring_desc *d, const struct rte_mbuf *m)
{
	uint32_t len = m->data_len, whole = RTE_ALIGN_CEIL(len, WHOLE);
	const uint8_t *from = rte_pktmbuf_mtod(m, const uint8_t *);
	uint8_t *to = len <= SHORT_BYTES && whole + m->data_off <= m->buf_len ? free_buffer(v, d, whole) : NULL;

	if (likely(to != NULL)) {
		copy_whole(to, from, whole);
		return to;
	}
	to = free_buffer(v, d, len);
	if (to != NULL)
		memcpy(to, from, len);
	return to;
}

/* Sends mbufs over a memif's ring; how many. */
static uint32_t
ring_tx_burst(struct view *v, const dpdk_sys_queue *q, struct ring *ring, uint32_t slots, struct rte_mbuf **mbufs,
	      uint32_t n)
{
	uint32_t i;

	if (n > slots)
		n = slots;
	for (i = 0; i < n; i++) {
		struct ring_desc *d = tx_desc(v, q, ring, i);
		struct rte_mbuf *m = mbufs[i];
		if (unlikely(to_slot(v, d, m) == NULL))
			break;
		describe(d, m->data_len);
	}
	if (i > 0) {
		ring_publish(v, q, ring, i);
		give_back(v, q);
		put_mbufs(q, mbufs, i);
	}
	return i;
}

void
dpdk_sys_memif(uint16_t port, uint16_t queues, int client)
{
	if (port < DPDK_SYS_PORTS_MAX) {
		views[port].client = client != 0;
		views[port].queues = (uint8_t)queues;
	}
}

void
dpdk_sys_rx_burst(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t room, dpdk_sys_burst *result)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	uint64_t bytes = 0;
	uint32_t frames = 0, dropped = 0;

	if (room > DPDK_SYS_BURST_MAX)
		room = DPDK_SYS_BURST_MAX;
	struct view *v = &views[q->port];
	uint8_t state = __atomic_load_n(&v->state, __ATOMIC_ACQUIRE);
	unsigned int before = lcore_enter(q->lcore);
	if (state == VIEW_RINGS) {
		ring_rx(v, q, out, room, result);
		lcore_leave(before);
		return;
	}
	uint16_t n = state == VIEW_NONE ? rte_eth_rx_burst(q->port, q->queue, mbufs, (uint16_t)room) : 0;
	for (uint16_t i = 0; i < n; i++) {
		struct rte_mbuf *m = mbufs[i];
		if (i + 4 < n)
			rte_prefetch0(rte_pktmbuf_mtod(mbufs[i + 4], void *));
		if (unlikely(m->nb_segs != 1 && rte_pktmbuf_linearize(m) != 0)) {
			rte_pktmbuf_free(m);
			dropped++;
			continue;
		}
		uint32_t len = m->data_len;
		frame_of(&out[frames], m, q->kind, len);
		if (unlikely(len > out[frames].cap)) {
			rte_pktmbuf_free(m);
			dropped++;
			continue;
		}
		bytes += len;
		frames++;
	}
	lcore_leave(before);
	result->bytes = bytes;
	result->frames = frames;
	result->dropped = dropped;
}

void
dpdk_sys_tx_burst(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n, dpdk_sys_burst *result)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	uint32_t lens[DPDK_SYS_BURST_MAX];
	uint32_t i;
	uint64_t bytes = 0;

	if (n > DPDK_SYS_BURST_MAX)
		n = DPDK_SYS_BURST_MAX;
	for (i = 0; i < n; i++) {
		const dpdk_sys_frame *f = &frames[i];
		if (unlikely(f->kind != q->kind || f->len > q->max_len))
			break;
		struct rte_mbuf *m = f->handle;
		m->data_len = (uint16_t)f->len;
		m->pkt_len = f->len;
		m->ol_flags = 0;
		mbufs[i] = m;
		lens[i] = f->len;
	}
	uint32_t sent = 0;
	if (i > 0) {
		struct view *v = &views[q->port];
		uint8_t state = __atomic_load_n(&v->state, __ATOMIC_ACQUIRE);
		struct ring *ring = NULL;
		uint32_t slots = 0;
		unsigned int before = lcore_enter(q->lcore);
		if (state == VIEW_RINGS)
			ring = ring_tx(v, q, i, &slots);
		if (ring != NULL) {
			sent = ring_tx_burst(v, q, ring, slots, mbufs, i);
		} else if (state != VIEW_CONNECTING) {
			sent = rte_eth_tx_burst(q->port, q->queue, mbufs, (uint16_t)i);
			if (state == VIEW_RINGS)
				ring_moved(v, q);
		}
		lcore_leave(before);
	}
	for (i = 0; i < sent; i++)
		bytes += lens[i];
	result->bytes = bytes;
	result->frames = sent;
	result->dropped = 0;
}

int
dpdk_sys_alloc(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t n)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];

	if (n > DPDK_SYS_BURST_MAX)
		return -EINVAL;
	if (unlikely(forked))
		return -ENODEV;
	unsigned int before = lcore_enter(q->lcore);
	int ret = take_mbufs(q, mbufs, n);
	lcore_leave(before);
	if (ret != 0)
		return ret;
	for (uint32_t i = 0; i < n; i++)
		frame_of(&out[i], mbufs[i], q->kind, 0);
	return 0;
}

int
dpdk_sys_free_bulk(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];

	if (n > DPDK_SYS_BURST_MAX)
		return 0;
	for (uint32_t i = 0; i < n; i++) {
		if (unlikely(frames[i].kind != q->kind))
			return 0;
		mbufs[i] = frames[i].handle;
	}
	if (unlikely(forked))
		return 1;
	unsigned int before = lcore_enter(q->lcore);
	if (__atomic_load_n(&views[q->port].state, __ATOMIC_RELAXED) == VIEW_RINGS)
		put_mbufs(q, mbufs, n);
	else
		rte_pktmbuf_free_bulk(mbufs, n);
	lcore_leave(before);
	return 1;
}

void
dpdk_sys_free(void *handle)
{
	/* In a forked child the buffer is the parent's. */
	if (likely(!forked))
		rte_pktmbuf_free(handle);
}

/* ---- the environment ---- */

void
dpdk_sys_block_signals(void)
{
	sigset_t all;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, NULL);
}

int
dpdk_sys_huge_page_works(size_t bytes)
{
	/* MAP_HUGE_SHIFT is 26: the page size's logarithm goes into the flags. */
	int log2 = 63 - __builtin_clzll((unsigned long long)bytes);
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (log2 << 26), -1, 0);
	if (p == MAP_FAILED)
		return 0;
	munmap(p, bytes);
	return 1;
}

static void (*log_line)(const char *, size_t);

static ssize_t
log_write(void *cookie, const char *text, size_t len)
{
	(void)cookie;
	if (log_line != NULL)
		log_line(text, len);
	return (ssize_t)len;
}

int
dpdk_sys_log_to(void (*line)(const char *text, size_t len), uint32_t level)
{
	cookie_io_functions_t io = { .write = log_write };
	FILE *f = fopencookie(NULL, "w", io);

	if (f == NULL)
		return -ENOMEM;
	setvbuf(f, NULL, _IOLBF, 512);
	log_line = line;
	rte_log_set_global_level(level);
	return rte_openlog_stream(f) == 0 ? 0 : -EINVAL;
}

static void
in_child(void)
{
	forked = 1;
	for (int p = 0; p < DPDK_SYS_PORTS_MAX; p++)
		for (int q = 0; q < DPDK_SYS_QUEUES_MAX; q++)
			gates[p][q].closed = 1;
}

int
dpdk_sys_eal_init(int argc, char **argv, void (*fence)(void))
{
	heavy_fence = fence;
	int ret = rte_eal_init(argc, argv);
	if (ret < 0)
		return rte_errno != 0 ? -rte_errno : -EINVAL;
	pthread_atfork(NULL, NULL, in_child);
	return 0;
}

int
dpdk_sys_forked(void)
{
	return forked;
}

const char *
dpdk_sys_version(void)
{
	return rte_version();
}

void
dpdk_sys_cpu_list(char *out, size_t size)
{
	cpu_set_t set;
	size_t used = 0;

	if (size > 0)
		out[0] = '\0';
	if (sched_getaffinity(0, sizeof(set), &set) != 0)
		return;
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
		if (!CPU_ISSET(cpu, &set))
			continue;
		int last = cpu;
		while (last + 1 < CPU_SETSIZE && CPU_ISSET(last + 1, &set))
			last++;
		int n = snprintf(out + used, size - used, "%s%d-%d", used > 0 ? "," : "", cpu, last);
		if (n < 0 || (size_t)n >= size - used) {
			out[used] = '\0';
			return;
		}
		used += (size_t)n;
		cpu = last;
	}
}

uint32_t
dpdk_sys_lcore_reserve(void)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);
	uint32_t lcore = DPDK_SYS_LCORE_NONE;

	/* The id is what counts: it stays reserved after this thread has its own back. */
	if (rte_thread_register() == 0)
		lcore = rte_lcore_id();
	RTE_PER_LCORE(_lcore_id) = before;
	return lcore;
}

void
dpdk_sys_lcore_release(uint32_t lcore)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);

	if (lcore == DPDK_SYS_LCORE_NONE || forked)
		return;
	RTE_PER_LCORE(_lcore_id) = lcore;
	rte_thread_unregister();
	RTE_PER_LCORE(_lcore_id) = before;
}

int
dpdk_sys_on_interrupt_thread(void (*fn)(void *), void *arg)
{
	return rte_eal_alarm_set(1, fn, arg);
}

/* ---- ports ---- */

int
dpdk_sys_hotplug_add(const char *bus, const char *name, const char *args)
{
	/* From 24.11 on rte_eal_hotplug_add refuses arguments of 128 bytes and more, which it keeps for other processes. */
	if (strcmp(bus, "vdev") == 0) {
		int ret = rte_vdev_init(name, args);
		return ret > 0 ? -ENODEV : ret; /* 1: no driver has such a name */
	}
	return rte_eal_hotplug_add(bus, name, args);
}

int
dpdk_sys_hotplug_remove(const char *bus, const char *name)
{
	return strcmp(bus, "vdev") == 0 ? rte_vdev_uninit(name) : rte_eal_hotplug_remove(bus, name);
}

int
dpdk_sys_port_by_name(const char *name)
{
	uint16_t port;

	if (rte_eth_dev_get_port_by_name(name, &port) != 0 || port >= DPDK_SYS_PORTS_MAX)
		return -ENODEV;
	return port;
}

void *
dpdk_sys_pool_create(const char *name, uint32_t n, uint32_t room, int *error)
{
	struct rte_mempool *pool;

	if (room + RTE_PKTMBUF_HEADROOM > UINT16_MAX) {
		*error = EINVAL;
		return NULL;
	}
	pool = rte_pktmbuf_pool_create(name, n, n >= 1024 ? 256 : 0, 0,
				       (uint16_t)(room + RTE_PKTMBUF_HEADROOM), SOCKET_ID_ANY);
	*error = pool == NULL ? rte_errno : 0;
	return pool;
}

int
dpdk_sys_pool_free(void *pool)
{
	if (forked || rte_mempool_full(pool) != 1)
		return 0;
	rte_mempool_free(pool);
	return 1;
}

uint32_t
dpdk_sys_pool_in_use(const void *pool)
{
	return rte_mempool_in_use_count(pool);
}

int
dpdk_sys_port_limits(uint16_t port, dpdk_sys_limits *out)
{
	struct rte_eth_dev_info info;
	int ret = rte_eth_dev_info_get(port, &info);

	if (ret != 0)
		return ret;
	memset(out, 0, sizeof(*out));
	out->max_rx_queues = info.max_rx_queues;
	out->max_tx_queues = info.max_tx_queues;
	out->max_mtu = info.max_mtu;
	out->rx_ring = info.default_rxportconf.ring_size;
	out->tx_ring = info.default_txportconf.ring_size;
	snprintf(out->driver, sizeof(out->driver), "%s", info.driver_name != NULL ? info.driver_name : "?");
	return 0;
}

int
dpdk_sys_port_setup(uint16_t port, uint16_t queues, uint32_t mtu, uint16_t *rx_ring, uint16_t *tx_ring,
		    void *pool, const char **stage)
{
	struct rte_eth_dev_info info;
	struct rte_eth_conf conf;
	int ret;

	*stage = "asking what it can do";
	ret = rte_eth_dev_info_get(port, &info);
	if (ret != 0)
		return ret;

	memset(&conf, 0, sizeof(conf));
	/* A software device that says 1500 may carry more all the same; it is not asked. */
	uint32_t default_max = info.max_mtu != 0 ? info.max_mtu : UINT16_MAX;
	if (info.max_rx_pktlen != 0 && mtu + RTE_ETHER_HDR_LEN + RTE_ETHER_CRC_LEN + 4 > info.max_rx_pktlen)
		default_max = 0;
	if (mtu <= default_max)
		conf.rxmode.mtu = mtu;
	if (info.tx_offload_capa & RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE)
		conf.txmode.offloads |= RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	/* RoCEv2 is UDP: spread by its ports over the queues where the device can. */
	uint64_t rss = info.flow_type_rss_offloads &
		       (RTE_ETH_RSS_NONFRAG_IPV4_UDP | RTE_ETH_RSS_NONFRAG_IPV6_UDP);
	if (queues > 1 && rss != 0) {
		conf.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		conf.rx_adv_conf.rss_conf.rss_hf = rss;
	}

	*stage = "configuring its queues";
	ret = rte_eth_dev_configure(port, queues, queues, &conf);
	if (ret != 0)
		return ret;
	*stage = "sizing its rings";
	ret = rte_eth_dev_adjust_nb_rx_tx_desc(port, rx_ring, tx_ring);
	if (ret != 0)
		return ret;
	for (uint16_t q = 0; q < queues; q++) {
		struct rte_eth_rxconf rx = info.default_rxconf;
		struct rte_eth_txconf tx = info.default_txconf;
		rx.offloads = conf.rxmode.offloads;
		tx.offloads = conf.txmode.offloads;
		*stage = "setting up a receive queue";
		ret = rte_eth_rx_queue_setup(port, q, *rx_ring, SOCKET_ID_ANY, &rx, pool);
		if (ret != 0)
			return ret;
		*stage = "setting up a transmit queue";
		ret = rte_eth_tx_queue_setup(port, q, *tx_ring, SOCKET_ID_ANY, &tx);
		if (ret != 0)
			return ret;
	}
	return 0;
}

int
dpdk_sys_port_start(uint16_t port)
{
	return rte_eth_dev_start(port);
}

int
dpdk_sys_port_stop(uint16_t port)
{
	return rte_eth_dev_stop(port);
}

int
dpdk_sys_port_get_mac(uint16_t port, uint8_t mac[6])
{
	struct rte_ether_addr addr;
	int ret = rte_eth_macaddr_get(port, &addr);

	if (ret == 0)
		memcpy(mac, addr.addr_bytes, 6);
	return ret;
}

int
dpdk_sys_port_set_mac(uint16_t port, const uint8_t mac[6])
{
	struct rte_ether_addr addr;

	memcpy(addr.addr_bytes, mac, 6);
	return rte_eth_dev_default_mac_addr_set(port, &addr);
}

int
dpdk_sys_port_set_mtu(uint16_t port, uint32_t mtu)
{
	return mtu <= UINT16_MAX ? rte_eth_dev_set_mtu(port, (uint16_t)mtu) : -EINVAL;
}

int
dpdk_sys_port_get_mtu(uint16_t port, uint32_t *mtu)
{
	uint16_t value;
	int ret = rte_eth_dev_get_mtu(port, &value);

	if (ret == 0)
		*mtu = value;
	return ret;
}

int
dpdk_sys_port_promiscuous(uint16_t port)
{
	int ret = rte_eth_promiscuous_enable(port);

	/* A virtual function may be refused that, and still be let take all groups. */
	if (ret != 0)
		rte_eth_allmulticast_enable(port);
	return ret;
}

int
dpdk_sys_port_link(uint16_t port)
{
	struct rte_eth_link link;

	memset(&link, 0, sizeof(link));
	if (forked || rte_eth_link_get_nowait(port, &link) != 0)
		return 0;
	return link.link_status == RTE_ETH_LINK_UP;
}

int
dpdk_sys_port_missed(uint16_t port, uint64_t *rx, uint64_t *tx)
{
	struct rte_eth_stats stats;
	int ret = forked ? -ENODEV : rte_eth_stats_get(port, &stats);

	if (ret == 0) {
		*rx = stats.imissed + stats.ierrors + stats.rx_nombuf;
		*tx = stats.oerrors;
	}
	return ret;
}

int
dpdk_sys_iface_socket(void)
{
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	return fd >= 0 ? fd : -errno;
}

int
dpdk_sys_iface_look(int fd, uint32_t index, uint32_t *mtu)
{
	struct ifreq request;

	memset(&request, 0, sizeof(request));
	request.ifr_ifindex = (int)index;
	/* Its name now: it may be another one than when it was opened. */
	if (ioctl(fd, SIOCGIFNAME, &request) != 0 || ioctl(fd, SIOCGIFMTU, &request) != 0)
		return -errno;
	*mtu = (uint32_t)request.ifr_mtu;
	if (ioctl(fd, SIOCGIFFLAGS, &request) != 0)
		return -errno;
	return (request.ifr_flags & IFF_UP) != 0 && (request.ifr_flags & IFF_RUNNING) != 0;
}

int
dpdk_sys_iface_set_mac(const char *iface, const uint8_t mac[6])
{
	struct ifreq request;
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	if (fd < 0)
		return -errno;
	memset(&request, 0, sizeof(request));
	snprintf(request.ifr_name, sizeof(request.ifr_name), "%s", iface);
	request.ifr_hwaddr.sa_family = ARPHRD_ETHER;
	memcpy(request.ifr_hwaddr.sa_data, mac, 6);
	int ret = ioctl(fd, SIOCSIFHWADDR, &request) == 0 ? 0 : -errno;
	close(fd);
	return ret;
}
