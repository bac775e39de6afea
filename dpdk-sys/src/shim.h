/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C side of the DPDK port. This file includes nothing of DPDK's own headers, so that its bindings
 * are the same for every release of DPDK. Functions that return int return 0 or a count on success and a
 * negative errno on failure, unless they say otherwise. */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Frames moved by one call of a burst function. */
#define DPDK_SYS_BURST_MAX 64
/* The lcore id of a thread that is not an lcore. */
#define DPDK_SYS_LCORE_NONE 0xffffffffu

/* One owned buffer, with the layout of the caller's frame. `handle` is an mbuf if `kind` is the queue's `kind`. */
typedef struct dpdk_sys_frame {
	void *data;
	uint16_t len;
	uint16_t cap;
	uint32_t sum;      /* 0: not known */
	void *handle;
	const void *kind;
} dpdk_sys_frame;

/* What a queue's data path needs, filled by dpdk_sys_port_setup's caller. */
typedef struct dpdk_sys_queue {
	uint16_t port;
	uint16_t queue;
	uint32_t lcore;    /* reserved lcore id, or DPDK_SYS_LCORE_NONE */
	void *pool;        /* struct rte_mempool */
	const void *kind;  /* kind of the frames that are mbufs */
	uint32_t max_len;  /* longest frame sent */
} dpdk_sys_queue;

/* Result of a burst. */
typedef struct dpdk_sys_burst {
	uint64_t bytes;
	uint32_t frames;
	uint32_t dropped;  /* rx: frames that did not fit one buffer */
} dpdk_sys_burst;

/* ---- data path; nothing happens in a fork ---- */

/* Receives at most `room` frames into out[]. */
void dpdk_sys_rx_burst(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t room, dpdk_sys_burst *result);
/* Sends frames[0..result->frames); those belong to DPDK afterwards. Stops before a frame of another kind or
 * longer than max_len, and where the device takes no more. */
void dpdk_sys_tx_burst(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n, dpdk_sys_burst *result);
/* Allocates n (<= DPDK_SYS_BURST_MAX) empty frames, all or none. */
int dpdk_sys_alloc(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t n);
/* Frees the frames if all of them are mbufs: returns 1, or 0 with nothing done. */
int dpdk_sys_free_bulk(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n);
/* Frees one mbuf, on any thread. */
void dpdk_sys_free(void *handle);

/* ---- the environment ---- */

/* Passes DPDK's log lines to `line` (not terminated by NUL), from `level` (1 emergency .. 8 debug) on. */
int dpdk_sys_log_to(void (*line)(const char *text, size_t len), uint32_t level);
/* rte_eal_init; on success also prepares for fork. The strings must stay valid for ever. */
int dpdk_sys_eal_init(int argc, char **argv);
/* Whether this process is a child of the one that called dpdk_sys_eal_init. */
int dpdk_sys_forked(void);
/* Reserves an lcore id for threads that are not DPDK's (DPDK_SYS_LCORE_NONE: none is left); releases it. Neither
 * changes the calling thread's own id. */
uint32_t dpdk_sys_lcore_reserve(void);
void dpdk_sys_lcore_release(uint32_t lcore);

/* ---- ports ---- */

/* Whether a driver of virtual devices takes a device of this name. */
int dpdk_sys_has_driver(const char *name);
/* Adds a device: bus "vdev" or "pci", its name and arguments. */
int dpdk_sys_hotplug_add(const char *bus, const char *name, const char *args);
int dpdk_sys_hotplug_remove(const char *bus, const char *name);
/* Number of the port that the device `name` made, or -ENODEV. */
int dpdk_sys_port_by_name(const char *name);
/* Makes two net_ring devices, "net_ring_A" and "net_ring_B" for the names A and B, joined by `queues` rings of `slots` (a
 * power of two) each way. The rings are never freed. */
int dpdk_sys_ring_pair(const char *a, const char *b, uint16_t queues, uint32_t slots);

/* A pool of n mbufs, each with room for `room` bytes behind the headroom; NULL and *error = errno on failure. */
void *dpdk_sys_pool_create(const char *name, uint32_t n, uint32_t room, int *error);
/* Frees the pool if every buffer is back: returns 1, or 0 with nothing done. */
int dpdk_sys_pool_free(void *pool);

/* Limits of a device, and its ring sizes and driver. */
typedef struct dpdk_sys_limits {
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint32_t max_mtu;
	/* Least size of a receive buffer in bytes. */
	uint32_t min_rx_room;
	uint16_t rx_ring;
	uint16_t tx_ring;
	char driver[32];
} dpdk_sys_limits;

int dpdk_sys_port_limits(uint16_t port, dpdk_sys_limits *out);
/* Configures `queues` queue pairs over the pool. *stage names the step that failed. *rx_ring and *tx_ring are the
 * wanted ring sizes, and on return those that the device has. `mtu` is set in the device where possible. */
int dpdk_sys_port_setup(uint16_t port, uint16_t queues, uint32_t mtu, uint16_t *rx_ring, uint16_t *tx_ring,
			void *pool, const char **stage);
int dpdk_sys_port_start(uint16_t port);
int dpdk_sys_port_stop(uint16_t port);
int dpdk_sys_port_get_mac(uint16_t port, uint8_t mac[6]);
int dpdk_sys_port_set_mac(uint16_t port, const uint8_t mac[6]);
int dpdk_sys_port_set_mtu(uint16_t port, uint32_t mtu);
int dpdk_sys_port_get_mtu(uint16_t port, uint32_t *mtu);
int dpdk_sys_port_promiscuous(uint16_t port);
/* 1 up, 0 down. */
int dpdk_sys_port_link(uint16_t port);
/* Frames that the device itself dropped. */
int dpdk_sys_port_missed(uint16_t port, uint64_t *rx, uint64_t *tx);

#endif
