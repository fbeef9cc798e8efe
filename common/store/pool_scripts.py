"""How n-grams lie in Redis, and the two scripts that change and read them.

One sorted set for each model, tenant, half-life, length and first token: a member is the tokens
after the first, 4 bytes each, its score the logarithm to base 2 of its frequency, in which every
occurrence loses half its weight in a half-life. Written as if all weights grew instead
(`now`, in half-lives, is the score of one occurrence now), no score has to be touched for that.
So scores with different half-lives cannot be compared, and lie apart.

A hash of sizes and an index by last write hold all pools of a namespace under one budget of
bytes: the longest unwritten sets go first. All keys share a hash tag, so that a proxy before a
cluster puts them on one shard, where a script may touch them together. Redis 7.0 and newer, Valkey.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator

UPSERTS = 64
"""N-grams in one call at most: a script blocks the server, a few us for each."""

WRITE = """
local half_life_s, ttl_ms, most = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local max_bytes, size = tonumber(ARGV[4]), tonumber(ARGV[5])
local time = redis.call('TIME')
local seconds = tonumber(time[1]) + tonumber(time[2]) / 1e6
local now, log2 = seconds / half_life_s, math.log(2)
local index, sizes = KEYS[1], KEYS[2]
local per_key = 256  -- the name, in three places

if redis.call('EXISTS', index, sizes) < 2 then redis.call('DEL', index, sizes) end

local function resize(key, bytes)
  local before = tonumber(redis.call('HGET', sizes, key)) or 0
  if bytes > 0 then redis.call('HSET', sizes, key, bytes) else redis.call('HDEL', sizes, key) end
  return tonumber(redis.call('HINCRBY', sizes, 'total', bytes - before))
end

local function forget(key)
  redis.call('UNLINK', key)
  redis.call('ZREM', index, key)
  return resize(key, 0)
end

for i = 3, #KEYS do
  local key, records, grown = KEYS[i], ARGV[i + 3], 0
  for at = 1, #records, size + 1 do
    local member = string.sub(records, at + 1, at + size)
    local score = now + math.log(string.byte(records, at)) / log2
    local known = tonumber(redis.call('ZSCORE', key, member))
    if known then
      local high, low = math.max(known, score), math.min(known, score)
      score = high + math.log(1 + 2 ^ (low - high)) / log2
    end
    grown = grown + redis.call('ZADD', key, score, member)
  end
  redis.call('PEXPIRE', key, ttl_ms)
  grown = grown + redis.call('ZADD', index, seconds, key)
  if grown > 0 then  -- else it takes what it took
    redis.call('ZREMRANGEBYRANK', key, 0, -most - 1)
    resize(key, redis.call('MEMORY', 'USAGE', key) + per_key)
  end
end

local gone = 0
for _, key in ipairs(redis.call('ZRANGE', index, '-inf', seconds - ttl_ms / 1000, 'BYSCORE',
                                'LIMIT', 0, 16)) do
  forget(key)
end
local total = tonumber(redis.call('HGET', sizes, 'total'))
while total > max_bytes do
  local oldest = redis.call('ZRANGE', index, 0, 0)[1]
  if not oldest then break end
  total = forget(oldest)
  gone = gone + 1
end
redis.call('PEXPIRE', index, 2 * ttl_ms)
redis.call('PEXPIRE', sizes, 2 * ttl_ms)
return gone
"""
"""KEYS: index, sizes, then sets. ARGV: half-life, TTL, members kept, budget, bytes of a member,
then for each set its records, a byte of occurrences and the member each. Returns sets evicted."""

READ = """
local half_life_s, most = tonumber(ARGV[1]), tonumber(ARGV[2])
local time = redis.call('TIME')
local now = (tonumber(time[1]) + tonumber(time[2]) / 1e6) / half_life_s
local out = {}
for i, key in ipairs(KEYS) do
  local found = redis.call('ZRANGE', key, 0, most - 1, 'REV', 'WITHSCORES')
  local members, weights = {}, {}
  for at = 1, #found, 2 do
    members[#members + 1] = found[at]
    weights[#weights + 1] = string.format('%.4g', 2 ^ (tonumber(found[at + 1]) - now))
  end
  out[2 * i - 1] = table.concat(members)
  out[2 * i] = table.concat(weights, ' ')
end
return out
"""
"""KEYS: sets. ARGV: half-life, members wanted. Returns, for each, members and weights, joined."""


class Layout:
    """Names and packing for one model.

    Args:
        namespace: Begins every key.
        model: Which one; n-grams of another never mix with its.
        ngram_tokens: Tokens of an n-gram.
        half_life_s: Of their weights, in seconds.
    """

    def __init__(self, namespace: str, model: str, ngram_tokens: int, half_life_s: float) -> None:
        self._prefix = f"{namespace}:{{ngrams}}"
        self._model, self._tokens = model, ngram_tokens
        self._half_life_s = float(half_life_s)
        self._member = struct.Struct(f"<{ngram_tokens - 1}I")
        self.index, self.sizes = f"{self._prefix}:index", f"{self._prefix}:sizes"

    @property
    def ngram_tokens(self) -> int:
        """Tokens of an n-gram."""
        return self._tokens

    @property
    def member_bytes(self) -> int:
        """Length of a member."""
        return self._member.size

    def prefix(self, tenant: str) -> str:
        """Begins the names of a tenant's sets; nobody can tell whose it is, and none collide."""
        owner = hashlib.blake2b(f"{self._model}\0{tenant}".encode(), digest_size=16).hexdigest()
        return f"{self._prefix}:{owner}:{self._half_life_s}:{self._tokens}:"

    def key(self, tenant: str, first: int) -> str:
        """Name of a sorted set: the prefix, and the first token."""
        return f"{self.prefix(tenant)}{first}"

    def ngrams(
        self, first: int, members: bytes, weights: bytes
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """N-grams and frequencies out of what `READ` returns for one set."""
        for tail, weight in zip(self._member.iter_unpack(members), weights.split(), strict=True):
            yield (first, *tail), float(weight)
