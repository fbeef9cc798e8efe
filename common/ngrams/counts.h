/* What followed what: `contexts.py` once more.

   A context is known by 64 bits of its tokens; two that share them are taken for one, which changes
   how much is guessed right, and nothing else. */

#ifndef COUNTS_H
#define COUNTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FOLLOWERS = 16, LEAST_SLOTS = 4, NONE = -1 };

typedef struct {
    double count;
    int32_t token;
    int32_t next; /* place among the generation's further ones, or NONE */
} Follower;

typedef struct {
    uint64_t key;
    Follower first;
} Slot;

static const uint64_t EMPTY = 0, GONE = 1; /* GONE: to the younger generation */

typedef struct {
    Slot *slots;
    size_t room, live; /* a power of two; those with a context */
    Follower *further;
    int32_t further_room, further_used, spare; /* `spare` begins a chain of free ones */
} Generation;

typedef struct {
    size_t most; /* contexts of a generation */
    Generation young, old;
    bool failed; /* for want of memory; what was to be counted was not */
} Counts;

static uint64_t start_key; /* of the empty context; another in each process, so nobody can aim */

/* The key of the context that has one more token at its old end. */
static inline uint64_t further_back(uint64_t key, int32_t token)
{
    key = (key ^ (uint32_t)token) * 0x9E3779B97F4A7C15u;
    return (key ^ key >> 32) | (uint64_t)1 << 63; /* never EMPTY nor GONE */
}

static void drop(Generation *generation)
{
    free(generation->slots);
    free(generation->further);
    *generation = (Generation){.spare = NONE};
}

static Slot *seek(const Generation *generation, uint64_t key)
{
    if (!generation->slots)
        return NULL;
    for (size_t at = key;; at++) {
        Slot *slot = generation->slots + (at & (generation->room - 1));
        if (slot->key == key)
            return slot;
        if (slot->key == EMPTY)
            return NULL;
    }
}

static Slot *first_free(Slot *slots, size_t room, uint64_t key)
{
    for (size_t at = key;; at++)
        if (slots[at & (room - 1)].key == EMPTY)
            return slots + (at & (room - 1));
}

/* Makes room for one more context of a young generation; false where there is no memory. */
static bool widen(Generation *generation)
{
    size_t room = LEAST_SLOTS;
    if (4 * (generation->live + 1) <= 3 * generation->room)
        return true;
    while (4 * (generation->live + 1) > 2 * room)
        room *= 2;
    Slot *slots = calloc(room, sizeof *slots);
    if (!slots)
        return false;
    for (size_t at = 0; at < generation->room; at++)
        if (generation->slots[at].key != EMPTY)
            *first_free(slots, room, generation->slots[at].key) = generation->slots[at];
    free(generation->slots);
    generation->slots = slots, generation->room = room;
    return true;
}

/* A place for one more follower; NONE where there is no memory. */
static int32_t spare_place(Generation *generation)
{
    int32_t place = generation->spare;
    if (place != NONE) {
        generation->spare = generation->further[place].next;
        return place;
    }
    if (generation->further_used == generation->further_room) {
        int32_t room = generation->further_room ? 2 * generation->further_room : LEAST_SLOTS;
        Follower *further = realloc(generation->further, room * sizeof *further);
        if (!further)
            return NONE;
        generation->further = further, generation->further_room = room;
    }
    return generation->further_used++;
}

/* Copies the followers of a context, in the order they came in; returns how many. */
static int copy(const Generation *generation, const Slot *slot, Follower *out)
{
    int count = 1;
    out[0] = slot->first;
    for (int32_t at = slot->first.next; at != NONE; at = generation->further[at].next)
        out[count++] = generation->further[at];
    return count;
}

/* Gives a context these followers in place of its own; false where there is no memory. */
static bool put(Generation *generation, Slot *slot, const Follower *followers, int count)
{
    int32_t *link = &slot->first.next, chain = *link;
    slot->first = followers[0];
    for (int32_t at = chain, after; at != NONE; at = after) {
        after = generation->further[at].next;
        generation->further[at].next = generation->spare;
        generation->spare = at;
    }
    *link = NONE;
    for (int index = count - 1; index > 0; index--) {
        int32_t place = spare_place(generation);
        if (place == NONE)
            return false;
        generation->further[place] = followers[index];
        generation->further[place].next = *link;
        *link = place;
    }
    return true;
}

/* A new context of the younger generation, with these followers. */
static Slot *keep(Counts *counts, uint64_t key, const Follower *followers, int count)
{
    if (counts->young.live >= counts->most) {
        drop(&counts->old);
        counts->old = counts->young;
        counts->young = (Generation){.spare = NONE};
    }
    Generation *young = &counts->young;
    if (!widen(young)) {
        counts->failed = true;
        return NULL;
    }
    Slot *slot = first_free(young->slots, young->room, key);
    *slot = (Slot){.key = key, .first = {.next = NONE}};
    young->live++;
    counts->failed |= !put(young, slot, followers, count);
    return slot;
}

/* The place of a context, which is of the younger generation from now on; NULL where it is new. */
static Slot *find(Counts *counts, uint64_t key)
{
    Slot *slot = seek(&counts->young, key), *aged;
    if (slot || !(aged = seek(&counts->old, key)))
        return slot;
    Follower followers[MOST_FOLLOWERS + 1];
    int count = copy(&counts->old, aged, followers);
    aged->key = GONE;
    counts->old.live--;
    return keep(counts, key, followers, count);
}

/* Orders followers by falling count, those of equal counts as they came. */
static void rank(Follower *followers, int count)
{
    for (int index = 1; index < count; index++) {
        Follower one = followers[index];
        int at = index;
        for (; at > 0 && followers[at - 1].count < one.count; at--)
            followers[at] = followers[at - 1];
        followers[at] = one;
    }
}

/* Counts a token after a context. */
static void add(Counts *counts, uint64_t key, int32_t token, double weight)
{
    Generation *young = &counts->young;
    Slot *slot = find(counts, key);
    if (!slot) {
        keep(counts, key, &(Follower){.count = weight, .token = token}, 1);
        return;
    }
    int32_t last = NONE, count = 1;
    for (Follower *one = &slot->first;; one = young->further + last, count++) {
        if (one->token == token) {
            one->count += weight;
            return;
        }
        if (one->next == NONE)
            break;
        last = one->next;
    }
    int32_t place = spare_place(young);
    if (place == NONE) {
        counts->failed = true;
        return;
    }
    young->further[place] = (Follower){.count = weight, .token = token, .next = NONE};
    *(last == NONE ? &slot->first.next : &young->further[last].next) = place;
    if (++count > MOST_FOLLOWERS) { /* the commoner half, at half its counts */
        Follower followers[MOST_FOLLOWERS + 1];
        rank(followers, copy(young, slot, followers));
        for (int index = 0; index < MOST_FOLLOWERS / 2; index++)
            followers[index].count /= 2;
        counts->failed |= !put(young, slot, followers, MOST_FOLLOWERS / 2);
    }
}

#endif
