// What the host can still give to this process, read from /proc and the cgroup files.
//
// Stateless functions, thread-safe. UINT64_MAX means no limit, or that it cannot be known.
#pragma once

#include <cstdint>
#include <string>

namespace unreft {

// MemAvailable of the host, or what is left below the tightest memory limit of this process's
// cgroups (v1 and v2, each level of the hierarchy) if that is less. Page cache that a cgroup can
// drop counts as free. `root` is put before /proc and /sys, for tests.
uint64_t RamAvailableBytes(const std::string& root = "");

// How much this process may lock, which bounds what it may pin: RLIMIT_MEMLOCK, UINT64_MAX where
// CAP_IPC_LOCK lifts it (only that of the first user namespace does).
uint64_t MemlockLimitBytes();

// Free bytes of the file system that holds `path`; UINT64_MAX when it has no limit of its own.
uint64_t FileSystemFreeBytes(const std::string& path);

}  // namespace unreft
