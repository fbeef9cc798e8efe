"""How a session lies in Redis, a hash, and the two scripts that open one and write it."""

from __future__ import annotations

MOST_AHEAD_US = 24 * 3600 * 1_000_000
"""An epoch further ahead of the clock is none: every later one, of any session, would follow it."""

# Microseconds, so that an epoch is higher than all before it even where the store has lost them;
# the store's clock, so that gateways need not agree on one. Redis 7.0 level.
_CLOCK = f"""
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local function sound(epoch)
  local number = tonumber(epoch or '0')
  return number and number < now + {MOST_AHEAD_US} and number or 0
end
"""
OPEN = f"""{_CLOCK}
local old = redis.call('HMGET', KEYS[1], 'epoch', 'owner', 'handle', 'model')
local epoch = math.max(sound(old[1]) + 1, tonumber(ARGV[2]) + 1, now)
local text = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'epoch', text)
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return {{text, old[2], old[3], old[4]}}
"""
# A lower epoch, or none, is that of a store that was away, or has lost its records, meanwhile.
SAVE = f"""{_CLOCK}
if sound(redis.call('HGET', KEYS[1], 'epoch')) > tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'owner', ARGV[3], 'handle', ARGV[4],
           'model', ARGV[5])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
