/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "shim.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <rte_bus_vdev.h>
#include <rte_dev.h>
#include <rte_devargs.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_eth_ring.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>

_Static_assert(sizeof(dpdk_sys_frame) == 32, "a frame has 32 bytes");
_Static_assert(DPDK_SYS_LCORE_NONE == LCORE_ID_ANY, "no lcore");

/* Set in a forked child, where the parent's queues, pools and threads must not be touched. */
static int forked;

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

/* Takes n mbufs from the pool, all or none. A pool's mbufs have one segment and one reference; the other fields of a
 * frame are written when it is received, or sent. */
static inline int
take_mbufs(const dpdk_sys_queue *q, struct rte_mbuf **mbufs, uint32_t n)
{
	int ret = rte_mempool_get_bulk(q->pool, (void **)mbufs, n);

	for (uint32_t i = 0; ret == 0 && i < n; i++)
		mbufs[i]->data_off = RTE_PKTMBUF_HEADROOM;
	return ret;
}

void
dpdk_sys_rx_burst(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t room, dpdk_sys_burst *result)
{
	struct rte_mbuf *mbufs[DPDK_SYS_BURST_MAX];
	uint64_t bytes = 0;
	uint32_t frames = 0, dropped = 0;

	*result = (dpdk_sys_burst){ 0 };
	if (unlikely(forked))
		return;
	if (room > DPDK_SYS_BURST_MAX)
		room = DPDK_SYS_BURST_MAX;
	unsigned int before = lcore_enter(q->lcore);
	uint16_t n = rte_eth_rx_burst(q->port, q->queue, mbufs, (uint16_t)room);
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

	*result = (dpdk_sys_burst){ 0 };
	if (unlikely(forked))
		return;
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
		unsigned int before = lcore_enter(q->lcore);
		sent = rte_eth_tx_burst(q->port, q->queue, mbufs, (uint16_t)i);
		lcore_leave(before);
	}
	for (i = 0; i < sent; i++)
		bytes += lens[i];
	result->bytes = bytes;
	result->frames = sent;
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
}

int
dpdk_sys_eal_init(int argc, char **argv)
{
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

uint32_t
dpdk_sys_lcore_reserve(void)
{
	unsigned int before = RTE_PER_LCORE(_lcore_id);
	uint32_t lcore = DPDK_SYS_LCORE_NONE;

	/* Only the id is wanted: it stays reserved after this thread gets its own id back. */
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

/* ---- ports ---- */

int
dpdk_sys_has_driver(const char *name)
{
	struct rte_devargs devargs = { 0 };
	/* Without the name of a bus each bus is asked, and that of virtual devices looks for a driver. */
	int ret = rte_devargs_parse(&devargs, name);

	rte_devargs_reset(&devargs);
	return ret == 0;
}

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

	if (rte_eth_dev_get_port_by_name(name, &port) != 0)
		return -ENODEV;
	return port;
}

#define RING_QUEUES_MAX 16

int
dpdk_sys_ring_pair(const char *a, const char *b, uint16_t queues, uint32_t slots)
{
	const char *ends[2] = { a, b };
	struct rte_ring *to[2][RING_QUEUES_MAX];
	char name[RTE_RING_NAMESIZE];
	int end, made, ret = 0;
	uint16_t queue;

	if (queues == 0 || queues > RING_QUEUES_MAX)
		return -EINVAL;
	for (end = 0; end < 2; end++) {
		for (queue = 0; queue < queues; queue++) {
			snprintf(name, sizeof(name), "%s_%u", ends[end], queue);
			to[end][queue] = rte_ring_create(name, slots, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ);
			if (to[end][queue] == NULL)
				return -rte_errno;
		}
	}
	for (end = 0; end < 2; end++) {
		made = rte_eth_from_rings(ends[end], to[end], queues, to[1 - end], queues, SOCKET_ID_ANY);
		ret = made < 0 ? -(rte_errno ? rte_errno : EIO) : 0;
		if (ret != 0)
			break;
	}
	return ret;
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
	out->min_rx_room = info.min_rx_bufsize;
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
	/* A software device may carry more than the maximum that it reports: for a larger MTU none is set. */
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

	/* A virtual function may be refused promiscuous mode, and still be granted all multicast. */
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
