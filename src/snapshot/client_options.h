// ClientOptions: every limit and wait of the client, by name.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/executor.h"

namespace unreft::snapshot {

struct SessionOptions {
  // Between two attempts to connect: doubles from the first to the longest, each drawn from its
  // upper half so that the ranks of a node do not knock together. Nothing is committed between the
  // start of a new daemon and the next attempt.
  Duration backoff_first = std::chrono::milliseconds(20);
  Duration backoff_max = std::chrono::milliseconds(250);
  // A daemon that accepted and does not answer Hello for so long is left and tried anew.
  Duration welcome_timeout = std::chrono::seconds(5);
};

struct CaptureOptions {
  Duration fence_timeout = std::chrono::seconds(60);  // then the version is given up
  uint64_t bucket_bytes = uint64_t{4} << 20;          // of one copy
  uint64_t device_bucket_bytes = uint64_t{8} << 20;   // if any tensor is on a device
  uint32_t buckets_in_flight = 1;  // queued at the copier; more only helps an asynchronous one
  uint64_t progress_every_bytes = uint64_t{8} << 20;  // between two Progress doorbells
  // A training thread in a blocking fence copies host memory too.
  bool fence_helps = true;
  // Cache lines of each tensor that are looked at when a snapshot begins and when its copies have
  // ended (docs/second_net.md); at most 16. 0 = none, for benchmarks: nobody sees then that a
  // tensor was written while it was copied.
  uint32_t probe_lines = 2;
  // Whether what is on a device is checksummed there, for the daemon to compare.
  bool device_checksum = false;
};

struct ClientOptions {
  SessionOptions session;
  CaptureOptions capture;
  Duration connect_timeout = std::chrono::seconds(10);
  Duration restore_timeout = std::chrono::seconds(300);  // of each of the restore calls
  Duration register_timeout = std::chrono::seconds(60);
  // Between two questions whether a caller that can end its wait goes on waiting.
  Duration wait_slice = std::chrono::milliseconds(100);
  // Between two looks whether memory for a snapshot is there.
  Duration ready_poll = std::chrono::milliseconds(5);
  // Whether a version is restored that another number of ranks has saved.
  bool any_world = false;
  uint32_t restore_threads = 1;
  // If any tensor is on a device: each thread verifies while it copies to pinned buffers, some
  // 8 GB/s, and PCIe 5 takes 50. No more than the cores that the process may use.
  uint32_t device_restore_threads = 8;
  // Blocks of one staging whose CRC may be wrong, until the restore fails.
  uint32_t staged_bad_blocks_max = 16;
  // Of the rank's own sealed slots, mapped while it waits for the decision, in turns of so many
  // bytes each (1 ms of small pages).
  size_t map_ahead_slots_max = 3;
  uint64_t map_ahead_chunk_bytes = uint64_t{16} << 20;
  size_t versions_remembered = 256;  // for WaitCommitted
};

}  // namespace unreft::snapshot
