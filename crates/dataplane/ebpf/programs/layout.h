/* SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only */
/* The layout of all maps. `src/layout.rs` has the same, field by field. */
#ifndef PORTWARDEN_LAYOUT_H
#define PORTWARDEN_LAYOUT_H

/* Every address has 16 bytes in network order; IPv4 is written as ::ffff:a.b.c.d. Ports are in network order, too. */
struct address {
	__u32 word[4];
};

/*
 * The table of frontends, `services`: a hash table with linear probing in an array, so that a lookup reads one cache line and nothing is allocated or
 * freed under a reader. A key is at the index that its hash gives, or at one of the MAX_PROBES - 1 after it; no entry in between is ENTRY_FREE.
 */
#define MAX_PROBES 64
#define ENTRY_FREE 0
#define ENTRY_USED 1
/* Something was here: a search goes on behind it. All other fields are 0. */
#define ENTRY_REMOVED 2

/* One frontend, half a cache line. A new one is written while it is not ENTRY_USED. */
struct service {
	struct address address;
	__u16 port;
	__u8 protocol;
	__u8 state;
	/* Index of the counters, 0 if the service port is not counted. The highest bit is only for user space. */
	__u32 counter;
	/* Bits 0-31 index of the pool, bits 32-63 seconds for which a client keeps its endpoint: together, so that they change at once. */
	__u64 target;
};

/* Entry 0 is not a frontend: it describes the table. A small part is in use until it is full, so that a few thousand frontends are on few pages. */
struct table_head {
	__u64 seed;
	__u64 reserved[2];
	/* The part in use. Bits 0-31 number of different values of the hash, bits 32-63 first entry: together, so that they change at once. */
	__u64 part;
};

#define COUNTER_MASK 0x7fffffff
/* In place of a pool. 0 leaves connections alone: the entry is being written or removed. */
#define REFUSED_POOL 0xffffffff

/* The pool that a frontend at an index of the part in use gets if it is free: a program reads both at the same time. */
#define POOL_BESIDE(index) (((index) >> 1) + 1)

/* The hash of address, port and protocol: one multiplication for each word, and another one at the end. Its upper half is used. */
#define HASH_MULTIPLIER 0x9e3779b97f4a7c15ull
#define HASH_LAST_MULTIPLIER 0xd6e8feb86659fd93ull

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
