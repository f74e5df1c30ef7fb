/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The layout of all maps. `src/layout.rs` has the same, field by field. */
#ifndef PORTWARDEN_LAYOUT_H
#define PORTWARDEN_LAYOUT_H

/* Every address has 16 bytes in network order; IPv4 is written as ::ffff:a.b.c.d. Ports are in network order, too. */
struct address {
	__u32 word[4];
};

/* One frontend. */
struct service_key {
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 reserved;
};

struct service {
	/* Index of the pool, or 0 if connections are refused. */
	__u32 pool;
	/* Seconds for which a client keeps its endpoint; 0 without session affinity. */
	__u32 affinity;
	/* Index of the counters; 0 if the service port is not counted. */
	__u32 counter;
	/* Only for user space. */
	__u32 flags;
};

/*
 * A pool is one word, so that it changes at once:
 * bits 32-63 first slot, bit 31 POOL_NEAR, bits 24-30 logarithm of the slots reserved, bits 0-23 number of endpoints.
 */
#define POOL_COUNT_MASK 0xffffff
/* The pool is small and its addresses are IPv4: `endpoints` holds all of them, in the order of the slots. */
#define POOL_NEAR 0x80000000

/* One cache line, which is all that a TCP connection needs of a near pool. */
struct pool {
	__u64 word;
	/* Bits 0-31 address, bits 32-47 port, both as in `struct backend`. Each changes at once, too. */
	__u64 endpoints[7];
};

struct backend {
	struct address address;
	__u16 port;
	/* Set by the program when a UDP socket is connected to the endpoint. */
	__u16 has_datagram_sockets;
	/* The pool it belongs to. 0 means that it has left: nothing new may use it. */
	__u32 pool;
};

struct affinity_key {
	__u64 namespace;
	__u32 pool;
	__u32 reserved;
};

struct affinity {
	__u64 last_use;
	__u32 backend;
	__u32 reserved;
};

struct counter {
	__u64 connections;
	__u64 refusals;
};

/* One destination of a socket: the address that the process asked for, and the endpoint that it got. */
struct destination {
	struct address service;
	struct address endpoint;
	__u16 service_port;
	__u16 endpoint_port;
	__u32 backend;
};

/*
 * What is remembered for a TCP socket that connects, at the place that the last bits of its cookie name. Cookies are counted, so neighbours in time are
 * neighbours in memory, and nothing is allocated.
 */
#define CONNECTIONS 32768
struct connection {
	/* 0 if the place is free. Only the socket itself frees it. */
	__u64 cookie;
	struct address service;
	struct address endpoint;
	__u16 service_port;
	__u16 endpoint_port;
	struct bpf_spin_lock lock;
};

/* What is remembered for a connected UDP socket, and for a TCP socket whose place is taken. */
struct connected_socket {
	struct destination destination;
	/* The key in `datagram_peers`, for UDP. */
	__u64 cookie;
};

/* The endpoint of a connected UDP socket. The backend tells Services apart that have the same endpoint. */
struct datagram_peer {
	struct address endpoint;
	__u16 port;
	__u16 reserved;
	__u32 backend;
};

/* What is remembered for a socket that sends datagrams without being connected. */
#define DESTINATIONS 8
struct datagram_socket {
	struct bpf_spin_lock lock;
	__u32 next;
	struct destination destinations[DESTINATIONS];
};

#endif
