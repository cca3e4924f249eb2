#include "base/job_memory.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_join.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

namespace unreft {
namespace {

constexpr char kAll[] = "/unreft.";
constexpr size_t kNamedMax = 4;

// Of "/unreft.<job>.<node>.<what>"; none of a name that no daemon gives.
std::optional<std::pair<std::string, uint64_t>> OwnerOf(const std::string& name) {
  const std::vector<std::string> parts = absl::StrSplit(name, absl::MaxSplits('.', 3));
  uint64_t node = 0;
  if (parts.size() != 4 || !CheckJobName(parts[1]).ok() || !absl::SimpleAtoi(parts[2], &node)) {
    return std::nullopt;
  }
  return std::pair(parts[1], node);
}

}  // namespace

absl::StatusOr<std::vector<JobMemory>> ListJobMemory(ShmSegmentStore& segments) {
  absl::StatusOr<std::vector<SegmentInfo>> found = segments.List(kAll);
  if (!found.ok()) return found.status();
  std::map<std::pair<std::string, uint64_t>, JobMemory> by_owner;
  for (const SegmentInfo& segment : *found) {
    const auto owner = OwnerOf(segment.name);
    if (!owner) continue;
    JobMemory& memory = by_owner[*owner];
    memory.job = owner->first;
    memory.node = owner->second;
    memory.segments += 1;
    memory.bytes += segment.bytes;
  }
  std::vector<JobMemory> all;
  for (auto& [owner, memory] : by_owner) {
    memory.is_served = segments.IsServed(SegmentPrefix(memory.job, memory.node) + "node");
    all.push_back(std::move(memory));
  }
  return all;
}

std::string DescribeUnserved(const std::vector<JobMemory>& all, const std::string& but_job,
                             uint64_t but_node) {
  std::vector<JobMemory> unserved;
  for (const JobMemory& memory : all) {
    if (memory.is_served || (memory.job == but_job && memory.node == but_node)) continue;
    unserved.push_back(memory);
  }
  if (unserved.empty()) return "";
  std::ranges::stable_sort(unserved, std::greater(), &JobMemory::bytes);
  uint64_t bytes = 0;
  std::vector<std::string> named;
  for (const JobMemory& memory : unserved) {
    bytes += memory.bytes;
    if (named.size() == kNamedMax) continue;
    named.push_back(
        fmt::format("job {}, node {} ({} bytes)", memory.job, memory.node, memory.bytes));
  }
  const size_t more = unserved.size() - named.size();
  return fmt::format(
      "{} bytes are held by what no unreftd serves any more: {}{}; `unreft memory` lists all, and "
      "`unreft down --job JOB --node NODE` frees what is of no use",
      bytes, absl::StrJoin(named, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

}  // namespace unreft
