// How large the segment is in which a node keeps the job's records
// (docs/formats/kept_records.md): reserved at its start, and part of the sum that it prints.
#pragma once

#include <algorithm>
#include <cstdint>

namespace unreft::smp {

// Of its two areas together, for a job of so many nodes. Holders, askers and a member are some
// 1,500 bytes for a node of 16 ranks with a long name, the chain of timelines and what is pinned
// some 16 KiB.
constexpr uint64_t RecordsBytes(uint64_t nodes) {
  return 2 * std::max(uint64_t{256} << 10, nodes * 4096);
}

}  // namespace unreft::smp
