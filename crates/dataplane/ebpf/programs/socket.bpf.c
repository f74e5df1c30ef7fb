// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
/*
 * Points sockets at endpoints.
 *
 * connect and sendmsg replace the address of a Service by that of an endpoint; recvmsg and getpeername give the address of
 * the Service back. Whatever has no record is left alone: the nftables rules of the node decide about it.
 *
 * Only stable parts of the kernel's interface are used (no CO-RE, no types of the kernel), so one object serves all kernels
 * from 5.10 on. Readers never lock what user space writes: a pool is one word, and a frontend or backend that is in use keeps its address.
 */
#include <linux/bpf.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "layout.h"

#define ECONNREFUSED 111
#define NANOSECONDS 1000000000ull

#define INLINE static __always_inline

/* Sizes are those of tests; the loader sets others. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct service);
	__uint(max_entries, 1024);
} services SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct pool);
	__uint(max_entries, 1024);
} pools SEC(".maps");

/* Numbers of backends. The slots of a pool are next to each other. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, __u32);
	__uint(max_entries, 1024);
} slots SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct backend);
	__uint(max_entries, 1024);
} backends SEC(".maps");

/* The kernel removes what was not used for the longest time. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
	__uint(max_entries, 32768);
} affinities SEC(".maps");

/*
 * All counters of the first processor, then those of the second one, and so on. A map of the kernel's type for this would lead to them through a
 * pointer, which is one more cache line.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__type(key, __u32);
	__type(value, struct counter);
	__uint(max_entries, 1024);
} counters SEC(".maps");

/* Cookies of the network namespaces to serve, if not all are served. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__type(key, __u64);
	__type(value, __u32);
	__uint(max_entries, 256);
} namespaces SEC(".maps");

/* Entries are freed when the socket is closed. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__type(key, __u32);
	__type(value, struct connection);
	__uint(max_entries, CONNECTIONS);
} connections SEC(".maps");

/* The kernel frees it with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct connected_socket);
} connected_sockets SEC(".maps");

/* Connected UDP sockets by cookie, for user space. An entry lives as long as its socket. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u64);
	__type(value, struct datagram_peer);
	__uint(max_entries, 65536);
} datagram_peers SEC(".maps");

/* The kernel frees it with the socket. */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct datagram_socket);
} datagram_sockets SEC(".maps");

/* bpf_set_retval exists (5.18 and later). Without it, refusals are left to nftables. */
const volatile __u32 can_set_error = 0;
/* The cookie of the node's network namespace; 0 means that of the initial one. */
const volatile __u64 node_namespace = 0;
/* Whether only the namespaces listed in the map are served. */
const volatile __u32 listed_namespaces_only = 0;
/* How many counters each processor has. */
const volatile __u32 counters_per_processor = 0;

enum outcome { PASS, TRANSLATED, REFUSED };

INLINE int same_address(const struct address *a, const struct address *b)
{
	return a->word[0] == b->word[0] && a->word[1] == b->word[1] && a->word[2] == b->word[2] && a->word[3] == b->word[3];
}

INLINE int is_ipv4_loopback(const struct address *address)
{
	return address->word[0] == 0 && address->word[1] == 0 && address->word[2] == bpf_htonl(0xffff) &&
	       (address->word[3] & bpf_htonl(0xff000000)) == bpf_htonl(0x7f000000);
}

INLINE int is_ipv6_loopback(const struct address *address)
{
	return address->word[0] == 0 && address->word[1] == 0 && address->word[2] == 0 && address->word[3] == bpf_htonl(1);
}

INLINE int is_served(struct bpf_sock_addr *ctx)
{
	if (!listed_namespaces_only)
		return 1;
	__u64 namespace = bpf_get_netns_cookie(ctx);
	return bpf_map_lookup_elem(&namespaces, &namespace) != 0;
}

INLINE int is_in_node_namespace(struct bpf_sock_addr *ctx)
{
	__u64 node = node_namespace ? node_namespace : bpf_get_netns_cookie(0);
	return bpf_get_netns_cookie(ctx) == node;
}

/* What a program read of a frontend. */
struct frontend {
	/* Its pool, or REFUSED_POOL; 0 if there is no such frontend. */
	__u32 pool;
	__u32 affinity;
	__u32 counter;
	/* Where it is in the part of the table that is in use. */
	__u32 index;
};

INLINE __u64 mix(__u64 hash, __u64 word)
{
	hash = (hash ^ word) * HASH_MULTIPLIER;
	return hash ^ (hash >> 32);
}

/* Searches the table for an address and `port_word`: port, protocol and ENTRY_USED as in memory. */
INLINE struct frontend search(const struct address *address, __u32 port_word)
{
	struct frontend none = {};
	__u32 index = 0;
	struct table_head *head = bpf_map_lookup_elem(&services, &index);
	if (!head)
		return none;
	__u64 hash = head->seed;
	hash = mix(hash, (__u64)address->word[1] << 32 | address->word[0]);
	hash = mix(hash, (__u64)address->word[3] << 32 | address->word[2]);
	hash = mix(hash, port_word) * HASH_LAST_MULTIPLIER;
	__u64 part = *(volatile __u64 *)&head->part;
	__u32 first = (__u32)(part >> 32);
	index = first + (__u32)(((hash >> 32) * (__u32)part) >> 32);
#pragma clang loop unroll(disable)
	for (int probe = 0; probe < MAX_PROBES; probe++) {
		struct service *service = bpf_map_lookup_elem(&services, &index);
		if (!service)
			return none;
		__u32 found = *(volatile __u32 *)&service->port;
		if (found == port_word && same_address(&service->address, address)) {
			__u64 target = *(volatile __u64 *)&service->target;
			struct frontend frontend = {
				.pool = (__u32)target,
				.affinity = (__u32)(target >> 32),
				.counter = service->counter & COUNTER_MASK,
				.index = index - first,
			};
			return frontend;
		}
		if (!found)
			return none;
		index++;
	}
	return none;
}

INLINE struct frontend find_frontend(struct bpf_sock_addr *ctx, const struct destination *asked)
{
	struct frontend none = {};
	struct address address = asked->service;
	if (is_ipv4_loopback(&address)) {
		/* Node ports answer on all of 127.0.0.0/8, but a pod's loopback addresses are its own. */
		if (!is_in_node_namespace(ctx))
			return none;
		address.word[3] = bpf_htonl(0x7f000001);
	} else if (is_ipv6_loopback(&address) && !is_in_node_namespace(ctx)) {
		return none;
	}
	return search(&address, asked->service_port | (__u32)(__u8)ctx->protocol << 16 | ENTRY_USED << 24);
}

INLINE struct backend *find_backend(__u32 number, __u32 pool)
{
	struct backend *backend = bpf_map_lookup_elem(&backends, &number);
	return backend && backend->pool == pool ? backend : 0;
}

INLINE __u32 below(__u32 count)
{
	return (__u32)(((__u64)bpf_get_prandom_u32() * count) >> 32);
}

/* Draws an endpoint of a near pool: its address and port, but not the number of its backend. */
INLINE int draw_near(const struct frontend *frontend, struct destination *destination)
{
	/* Read before the number of the pool is looked at: the processor then need not wait for the entry to know where the pool is. */
	__u32 number = POOL_BESIDE(frontend->index);
	struct pool *pool = bpf_map_lookup_elem(&pools, &number);
	if (!pool)
		return 0;
	__u64 word = *(volatile __u64 *)&pool->word;
	if (frontend->pool != number) {
		number = frontend->pool;
		pool = bpf_map_lookup_elem(&pools, &number);
		if (!pool)
			return 0;
		word = *(volatile __u64 *)&pool->word;
	}
	__u32 count = (__u32)word & POOL_COUNT_MASK;
	if (!(word & POOL_NEAR) || !count)
		return 0;
	__u32 index = below(count);
	if (index >= sizeof(pool->endpoints) / sizeof(pool->endpoints[0]))
		return 0;
	__u64 endpoint = *(volatile __u64 *)&pool->endpoints[index];
	destination->endpoint.word[2] = bpf_htonl(0xffff);
	destination->endpoint.word[3] = (__u32)endpoint;
	destination->endpoint_port = (__u16)(endpoint >> 32);
	return 1;
}

/* A random backend of a pool. */
INLINE struct backend *draw(__u32 pool, __u32 *number)
{
	struct pool *record = bpf_map_lookup_elem(&pools, &pool);
	if (!record)
		return 0;
	/* One load: first slot and count belong together. */
	__u64 word = *(volatile __u64 *)&record->word;
	__u32 count = (__u32)word & POOL_COUNT_MASK;
	if (!count)
		return 0;
	__u32 slot = (__u32)(word >> 32) + below(count);
	__u32 *chosen = bpf_map_lookup_elem(&slots, &slot);
	if (!chosen)
		return 0;
	*number = *(volatile __u32 *)chosen;
	return bpf_map_lookup_elem(&backends, number);
}

/* A backend for a new connection: with session affinity, the one that the client used last. */
INLINE struct backend *choose(struct bpf_sock_addr *ctx, const struct frontend *frontend, __u32 *number)
{
	if (!frontend->affinity)
		return draw(frontend->pool, number);

	struct affinity_key key = { .namespace = bpf_get_netns_cookie(ctx), .pool = frontend->pool };
	__u64 now = bpf_ktime_get_ns();
	struct affinity *last = bpf_map_lookup_elem(&affinities, &key);
	if (last && now - last->last_use < (__u64)frontend->affinity * NANOSECONDS) {
		struct backend *backend = find_backend(last->backend, frontend->pool);
		if (backend) {
			last->last_use = now;
			*number = last->backend;
			return backend;
		}
	}
	struct backend *backend = draw(frontend->pool, number);
	if (backend) {
		struct affinity next = { .last_use = now, .backend = *number };
		bpf_map_update_elem(&affinities, &key, &next, BPF_ANY);
	}
	return backend;
}

INLINE void count(const struct frontend *frontend, int refused)
{
	if (!frontend->counter)
		return;
	__u32 index = bpf_get_smp_processor_id() * counters_per_processor + frontend->counter;
	struct counter *counter = bpf_map_lookup_elem(&counters, &index);
	if (!counter)
		return;
	if (refused)
		counter->refusals++;
	else
		counter->connections++;
}

/*
 * Without endpoints, connections fail at once. Datagrams are left to nftables, which answers with an ICMP error: a socket that
 * is connected to the Service's own address is served as soon as there is an endpoint.
 */
INLINE int refuse(struct bpf_sock_addr *ctx, const struct frontend *frontend)
{
	if (!can_set_error || ctx->protocol != IPPROTO_TCP)
		return PASS;
	count(frontend, 1);
	return REFUSED;
}

/* The socket is closed, or connected to something else. */
INLINE void forget_datagram_peer(const struct connected_socket *state)
{
	__u64 cookie = state->cookie;
	if (cookie)
		bpf_map_delete_elem(&datagram_peers, &cookie);
}

/* The place of a TCP socket in `connections`. */
INLINE struct connection *place_of(__u64 cookie)
{
	__u32 index = (__u32)cookie & (CONNECTIONS - 1);
	return bpf_map_lookup_elem(&connections, &index);
}

/* Writes a TCP connection to the place of its socket. Returns 0 if another socket has it. */
INLINE int occupy_place(struct connection *place, __u64 cookie, const struct destination *destination)
{
	if (!place)
		return 0;
	bpf_spin_lock(&place->lock);
	int is_own = !place->cookie || place->cookie == cookie;
	if (is_own) {
		place->cookie = cookie;
		place->service = destination->service;
		place->endpoint = destination->endpoint;
		place->service_port = destination->service_port;
		place->endpoint_port = destination->endpoint_port;
	}
	bpf_spin_unlock(&place->lock);
	return is_own;
}

INLINE void leave_place(__u64 cookie)
{
	struct connection *place = place_of(cookie);
	if (place && place->cookie == cookie)
		*(volatile __u64 *)&place->cookie = 0;
}

/* What the socket's storage has of an earlier connection. */
INLINE void forget_storage(struct bpf_sock *socket)
{
	struct connected_socket *state = bpf_sk_storage_get(&connected_sockets, socket, 0, 0);
	if (state) {
		forget_datagram_peer(state);
		bpf_sk_storage_delete(&connected_sockets, socket);
	}
}

INLINE void remember_connection(struct bpf_sock_addr *ctx, struct bpf_sock *socket, const struct destination *destination)
{
	struct connected_socket *state = bpf_sk_storage_get(&connected_sockets, socket, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!state)
		return;
	state->destination = *destination;
	if (ctx->protocol == IPPROTO_UDP) {
		__u64 cookie = bpf_get_socket_cookie(ctx);
		struct datagram_peer peer = {
			.endpoint = destination->endpoint,
			.port = destination->endpoint_port,
			.backend = destination->backend,
		};
		bpf_map_update_elem(&datagram_peers, &cookie, &peer, BPF_ANY);
		state->cookie = cookie;
	}
}

/* Chooses an endpoint for a socket that connects, and remembers it in the socket. */
INLINE int translate_connection(struct bpf_sock_addr *ctx, struct destination *destination)
{
	struct bpf_sock *socket = ctx->sk;
	__u64 cookie = 0, occupant = 0;
	struct connection *place = 0;
	if (ctx->protocol == IPPROTO_TCP) {
		cookie = bpf_get_socket_cookie(ctx);
		place = place_of(cookie);
		/* Read early, so that the processor waits for this cache line and for that of the frontend at the same time. */
		if (place)
			occupant = *(volatile __u64 *)&place->cookie;
	}
	struct frontend frontend = {};
	if (is_served(ctx))
		frontend = find_frontend(ctx, destination);
	if (!frontend.pool) {
		/* An earlier connection of the same socket may have left something. */
		if (place && occupant == cookie)
			*(volatile __u64 *)&place->cookie = 0;
		if (socket)
			forget_storage(socket);
		return PASS;
	}
	if (frontend.pool == REFUSED_POOL)
		return refuse(ctx, &frontend);
	/* Only session affinity and datagrams need the number of the backend. */
	if (ctx->protocol != IPPROTO_TCP || frontend.affinity || !draw_near(&frontend, destination)) {
		struct backend *backend = choose(ctx, &frontend, &destination->backend);
		if (!backend)
			return PASS;
		destination->endpoint = backend->address;
		destination->endpoint_port = backend->port;
		if (ctx->protocol == IPPROTO_UDP && !backend->has_datagram_sockets)
			backend->has_datagram_sockets = 1;
	}
	if (socket && !occupy_place(place, cookie, destination))
		remember_connection(ctx, socket, destination);
	count(&frontend, 0);
	return TRANSLATED;
}

/* Finds the destination with the asked service address among those of a socket. */
INLINE int recall(struct datagram_socket *state, struct destination *asked)
{
	int found = 0;
	bpf_spin_lock(&state->lock);
#pragma unroll
	for (int i = 0; i < DESTINATIONS; i++) {
		struct destination *known = &state->destinations[i];
		if (!found && known->service_port == asked->service_port && same_address(&known->service, &asked->service)) {
			asked->endpoint = known->endpoint;
			asked->endpoint_port = known->endpoint_port;
			asked->backend = known->backend;
			found = 1;
		}
	}
	bpf_spin_unlock(&state->lock);
	return found;
}

/* Stores a destination in the place of that for the same service address, or of the oldest one. */
INLINE void remember(struct datagram_socket *state, const struct destination *destination)
{
	int stored = 0;
	bpf_spin_lock(&state->lock);
#pragma unroll
	for (int i = 0; i < DESTINATIONS; i++) {
		struct destination *known = &state->destinations[i];
		if (!stored && known->service_port == destination->service_port &&
		    same_address(&known->service, &destination->service)) {
			*known = *destination;
			stored = 1;
		}
	}
	if (!stored) {
		__u32 place = state->next % DESTINATIONS;
		state->next = place + 1;
#pragma unroll
		for (int i = 0; i < DESTINATIONS; i++) {
			if (i == place)
				state->destinations[i] = *destination;
		}
	}
	bpf_spin_unlock(&state->lock);
}

/* Chooses an endpoint for a datagram. A socket keeps its endpoint as long as the pool has it. */
INLINE int translate_datagram(struct bpf_sock_addr *ctx, struct destination *destination)
{
	if (!is_served(ctx))
		return PASS;
	struct frontend frontend = find_frontend(ctx, destination);
	if (!frontend.pool || frontend.pool == REFUSED_POOL)
		return PASS;
	struct bpf_sock *socket = ctx->sk;
	struct datagram_socket *state =
		socket ? bpf_sk_storage_get(&datagram_sockets, socket, 0, BPF_SK_STORAGE_GET_F_CREATE) : 0;
	if (state && recall(state, destination)) {
		struct backend *known = find_backend(destination->backend, frontend.pool);
		/* The number may have been given to another endpoint. */
		if (known && known->port == destination->endpoint_port &&
		    same_address(&known->address, &destination->endpoint))
			return TRANSLATED;
	}
	struct backend *backend = choose(ctx, &frontend, &destination->backend);
	if (!backend)
		return PASS;
	destination->endpoint = backend->address;
	destination->endpoint_port = backend->port;
	if (state)
		remember(state, destination);
	count(&frontend, 0);
	return TRANSLATED;
}

INLINE int translate(struct bpf_sock_addr *ctx, struct destination *destination, int connects)
{
	if (ctx->protocol != IPPROTO_TCP && ctx->protocol != IPPROTO_UDP)
		return PASS;
	return connects ? translate_connection(ctx, destination) : translate_datagram(ctx, destination);
}

/* The hooks return 1 to go on and 0 to fail. */
INLINE int fail(void)
{
	if (can_set_error)
		bpf_set_retval(-ECONNREFUSED);
	return 0;
}

INLINE int forward4(struct bpf_sock_addr *ctx, int connects)
{
	struct destination destination = {
		.service = { .word = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 } },
		.service_port = (__u16)ctx->user_port,
	};
	int outcome = translate(ctx, &destination, connects);
	if (outcome == REFUSED)
		return fail();
	if (outcome == TRANSLATED) {
		ctx->user_ip4 = destination.endpoint.word[3];
		ctx->user_port = destination.endpoint_port;
	}
	return 1;
}

INLINE int forward6(struct bpf_sock_addr *ctx, int connects)
{
	struct destination destination = {
		.service = { .word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] } },
		.service_port = (__u16)ctx->user_port,
	};
	int outcome = translate(ctx, &destination, connects);
	if (outcome == REFUSED)
		return fail();
	if (outcome == TRANSLATED) {
		ctx->user_ip6[0] = destination.endpoint.word[0];
		ctx->user_ip6[1] = destination.endpoint.word[1];
		ctx->user_ip6[2] = destination.endpoint.word[2];
		ctx->user_ip6[3] = destination.endpoint.word[3];
		ctx->user_port = destination.endpoint_port;
	}
	return 1;
}

INLINE int is_endpoint(const struct destination *known, const struct address *address, __u16 port)
{
	return known->service_port && known->endpoint_port == port && same_address(&known->endpoint, address);
}

/* The same for a TCP socket that has its place. */
INLINE int restore_connection(__u64 cookie, struct address *address, __u16 *port)
{
	struct connection *place = place_of(cookie);
	if (!place)
		return 0;
	bpf_spin_lock(&place->lock);
	int found = place->cookie == cookie && place->endpoint_port == *port && same_address(&place->endpoint, address);
	if (found) {
		*address = place->service;
		*port = place->service_port;
	}
	bpf_spin_unlock(&place->lock);
	return found;
}

/* Replaces the address of an endpoint by that of the Service which the process asked for. */
INLINE int restore(struct bpf_sock_addr *ctx, struct address *address, __u16 *port)
{
	struct bpf_sock *socket = ctx->sk;
	if (!socket)
		return 0;
	if (ctx->protocol == IPPROTO_TCP && restore_connection(bpf_get_socket_cookie(ctx), address, port))
		return 1;
	struct connected_socket *connected = bpf_sk_storage_get(&connected_sockets, socket, 0, 0);
	if (connected && is_endpoint(&connected->destination, address, *port)) {
		*address = connected->destination.service;
		*port = connected->destination.service_port;
		return 1;
	}
	if (ctx->protocol != IPPROTO_UDP)
		return 0;
	struct datagram_socket *state = bpf_sk_storage_get(&datagram_sockets, socket, 0, 0);
	if (!state)
		return 0;
	int found = 0;
	bpf_spin_lock(&state->lock);
#pragma unroll
	for (int i = 0; i < DESTINATIONS; i++) {
		struct destination *known = &state->destinations[i];
		if (!found && is_endpoint(known, address, *port)) {
			*address = known->service;
			*port = known->service_port;
			found = 1;
		}
	}
	bpf_spin_unlock(&state->lock);
	return found;
}

INLINE int backward4(struct bpf_sock_addr *ctx)
{
	struct address address = { .word = { 0, 0, bpf_htonl(0xffff), ctx->user_ip4 } };
	__u16 port = (__u16)ctx->user_port;
	if (restore(ctx, &address, &port)) {
		ctx->user_ip4 = address.word[3];
		ctx->user_port = port;
	}
	return 1;
}

INLINE int backward6(struct bpf_sock_addr *ctx)
{
	struct address address = { .word = { ctx->user_ip6[0], ctx->user_ip6[1], ctx->user_ip6[2], ctx->user_ip6[3] } };
	__u16 port = (__u16)ctx->user_port;
	if (restore(ctx, &address, &port)) {
		ctx->user_ip6[0] = address.word[0];
		ctx->user_ip6[1] = address.word[1];
		ctx->user_ip6[2] = address.word[2];
		ctx->user_ip6[3] = address.word[3];
		ctx->user_port = port;
	}
	return 1;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return forward4(ctx, 1);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return forward6(ctx, 1);
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return forward4(ctx, 0);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return forward6(ctx, 0);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return backward4(ctx);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return backward6(ctx);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return backward4(ctx);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return backward6(ctx);
}

SEC("cgroup/sock_release")
int sock_release(struct bpf_sock *socket)
{
	if (socket->protocol == IPPROTO_TCP)
		leave_place(bpf_get_socket_cookie(socket));
	if (socket->protocol != IPPROTO_UDP)
		return 1;
	struct connected_socket *state = bpf_sk_storage_get(&connected_sockets, socket, 0, 0);
	if (state)
		forget_datagram_peer(state);
	return 1;
}

/* As the first line of this file says. */
char _license[] SEC("license") = "Dual BSD/GPL";
