/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The C side of the DPDK port. Nothing of DPDK's own headers shows here, so that bindings made from this file
 * are the same for every release of DPDK. Functions that return int return 0 or a count on success and a
 * negative errno on failure, unless they say otherwise. */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stddef.h>
#include <stdint.h>

/* Frames moved by one call of a burst function. */
#define DPDK_SYS_BURST_MAX 64
/* Ports and queues of a port that have a gate. */
#define DPDK_SYS_PORTS_MAX 32
#define DPDK_SYS_QUEUES_MAX 16
/* A burst received ends behind so many bytes: whoever checks and copies them then finds them in a near cache. */
#define DPDK_SYS_BURST_BYTES 8192
/* A thread that is no lcore. */
#define DPDK_SYS_LCORE_NONE 0xffffffffu

/* One owned buffer; laid out as the frame of the caller. `handle` is the mbuf where `kind` is the mbufs' kind. */
typedef struct dpdk_sys_frame {
	void *data;
	uint16_t len;
	uint16_t cap;
	uint32_t sum;      /* as the queue's `copy` returns it; 0 if it is not known */
	void *handle;
	const void *kind;
} dpdk_sys_frame;

/* Copies len bytes and returns a sum of the copy, or 0; asks for as many bytes at `ahead`, which may be NULL. */
typedef uint32_t (*dpdk_sys_copy)(void *to, const void *from, size_t len, const void *ahead);

/* What a queue's data path needs, filled by dpdk_sys_port_setup's caller. */
typedef struct dpdk_sys_queue {
	uint16_t port;
	uint16_t queue;
	uint32_t lcore;    /* reserved lcore id, or DPDK_SYS_LCORE_NONE */
	void *pool;        /* struct rte_mempool */
	const void *kind;  /* kind of the frames that are mbufs */
	uint32_t max_len;  /* longest frame sent */
	dpdk_sys_copy copy; /* copies long frames that are received; NULL if there is none */
} dpdk_sys_queue;

/* Result of a burst. */
typedef struct dpdk_sys_burst {
	uint64_t bytes;
	uint32_t frames;
	uint32_t dropped;  /* rx: frames that did not fit one buffer */
} dpdk_sys_burst;

/* ---- data path; the caller holds the queue's gate (rx, tx) ---- */

/* Receives at most `room` frames into out[]. The device may hold their slots until the next call that receives, sends or
 * gives back. */
void dpdk_sys_rx_burst(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t room, dpdk_sys_burst *result);
/* Gives the slots of received frames back to the sender. */
void dpdk_sys_give_back(const dpdk_sys_queue *q);
/* Sends frames[0..result->frames); those belong to DPDK afterwards. Stops before a frame of another kind or
 * longer than max_len, and where the device takes no more. */
void dpdk_sys_tx_burst(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n, dpdk_sys_burst *result);
/* Up to `wanted` (<= DPDK_SYS_BURST_MAX) buffers with room for max_len bytes in the device's shared memory, where it has such
 * (memif): frames are built there, in this order. How many; -1 where it has none, or while there is no link. */
int32_t dpdk_sys_tx_slots(const dpdk_sys_queue *q, void **buffers, uint32_t wanted);
/* Sends the frames in the first n of these buffers, which are so long. */
void dpdk_sys_tx_publish(const dpdk_sys_queue *q, const uint32_t *lens, uint32_t n);
/* Allocates n (<= DPDK_SYS_BURST_MAX) empty frames, all or none. Needs no gate. */
int dpdk_sys_alloc(const dpdk_sys_queue *q, dpdk_sys_frame *out, uint32_t n);
/* Frees the frames if all of them are mbufs: returns 1, or 0 with nothing done. Needs no gate. */
int dpdk_sys_free_bulk(const dpdk_sys_queue *q, const dpdk_sys_frame *frames, uint32_t n);
/* Frees one mbuf, on any thread. */
void dpdk_sys_free(void *handle);

/* ---- gates: who may be inside a port's queues ---- */

/* Two bytes for each queue, a cache line apart: "a burst is inside" and "closed". Whoever starts a burst stores 1 to the
 * first, passes a light fence, looks at the second, and stores 0 to the first when it leaves. All start closed. */
uint8_t *dpdk_sys_gate(uint16_t port, uint16_t queue);
/* Closes all gates of a port, waiting until nobody is inside. */
void dpdk_sys_gates_close(uint16_t port);
/* Opens the first n gates of a port. */
void dpdk_sys_gates_open(uint16_t port, uint16_t n);

/* ---- the environment ---- */

/* Blocks every signal in the calling thread. */
void dpdk_sys_block_signals(void);
/* Whether a huge page of `bytes` can be had right now. */
int dpdk_sys_huge_page_works(size_t bytes);
/* Leads DPDK's log lines to `line` (not terminated by NUL), from `level` (1 emergency .. 8 debug) on. */
int dpdk_sys_log_to(void (*line)(const char *text, size_t len), uint32_t level);
/* rte_eal_init; on success also prepares for fork. The strings must stay valid for ever. `fence` makes every thread of the
 * process pass a full fence: bursts enter their gates behind a light one. */
int dpdk_sys_eal_init(int argc, char **argv, void (*fence)(void));
/* Whether this process is a child of the one that called dpdk_sys_eal_init. */
int dpdk_sys_forked(void);
/* DPDK's version, as "DPDK 22.11.11". */
const char *dpdk_sys_version(void);
/* Writes the CPUs the calling thread may use, as "0-3,6", or "" if that is unknown. */
void dpdk_sys_cpu_list(char *out, size_t size);
/* Reserves an lcore id for a thread that is not DPDK's, or DPDK_SYS_LCORE_NONE; gives it back. The calling
 * thread's own id is the same afterwards. */
uint32_t dpdk_sys_lcore_reserve(void);
void dpdk_sys_lcore_release(uint32_t lcore);
/* Calls fn(arg) once on DPDK's interrupt thread, soon. */
int dpdk_sys_on_interrupt_thread(void (*fn)(void *), void *arg);

/* ---- ports ---- */

/* Adds a device: bus "vdev" or "pci", its name and arguments. */
int dpdk_sys_hotplug_add(const char *bus, const char *name, const char *args);
int dpdk_sys_hotplug_remove(const char *bus, const char *name);
/* Number of the port that the device `name` made, or -ENODEV. */
int dpdk_sys_port_by_name(const char *name);

/* A pool of n mbufs, each with room for `room` bytes behind the headroom; NULL and *error = errno on failure. */
void *dpdk_sys_pool_create(const char *name, uint32_t n, uint32_t room, int *error);
/* Frees the pool if every buffer is back: returns 1, or 0 with nothing done. */
int dpdk_sys_pool_free(void *pool);
/* Buffers of the pool that are in use. */
uint32_t dpdk_sys_pool_in_use(const void *pool);

/* What a device can do, and does. */
typedef struct dpdk_sys_limits {
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint32_t max_mtu;
	uint16_t rx_ring;
	uint16_t tx_ring;
	char driver[32];
} dpdk_sys_limits;

int dpdk_sys_port_limits(uint16_t port, dpdk_sys_limits *out);
/* Configures `queues` queue pairs over the pool. *stage names the step that failed. Ring sizes are wishes and
 * come back as they are. `mtu` is asked of the device where it can. */
int dpdk_sys_port_setup(uint16_t port, uint16_t queues, uint32_t mtu, uint16_t *rx_ring, uint16_t *tx_ring,
			void *pool, const char **stage);
/* Says that a port that is not started is a memif with this many queues, and whether it is the client; none if the
 * number is that of another device now. On the interrupt thread. From the next connection on the data path may go past
 * the driver. */
void dpdk_sys_memif(uint16_t port, uint16_t queues, int client);
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
/* A socket to look at Linux network interfaces of this thread's network namespace with. */
int dpdk_sys_iface_socket(void);
/* Whether frames get out and in by the interface of this number (1; 0: it is down, or has no carrier), and its MTU; -ENODEV if
 * it is gone. */
int dpdk_sys_iface_look(int fd, uint32_t index, uint32_t *mtu);
/* Sets the Ethernet address of a Linux network interface. */
int dpdk_sys_iface_set_mac(const char *iface, const uint8_t mac[6]);

#endif
