#include "tools/cli/attached_ranks.h"

#include <absl/strings/numbers.h>
#include <absl/strings/str_split.h>
#include <fmt/format.h>

#include <algorithm>

#include "base/proc_stat.h"
#include "base/segment_store.h"
#include "tools/cli/admin_client.h"
#include "tools/cli/daemon_control.h"
#include "tools/cli/process_handle.h"

namespace unreft::cli {
namespace {

constexpr Milliseconds kAnswerTimeout(2000);
constexpr size_t kNamedMax = 4;

// By "/unreft.<job>.<node>.control.<rank>.<pid>.<start time>".
std::vector<AttachedRank> LivingOwners(const Place& place) {
  std::vector<AttachedRank> ranks;
  const auto segments = ListMemory(place);
  if (!segments.ok()) return ranks;
  const std::string prefix = SegmentPrefix(place.job, place.node) + "control.";
  for (const SegmentInfo& segment : *segments) {
    if (!segment.name.starts_with(prefix)) continue;
    const std::vector<std::string> parts = absl::StrSplit(segment.name.substr(prefix.size()), '.');
    AttachedRank rank;
    uint64_t start_time = 0;
    const bool is_life = parts.size() == 3 && absl::SimpleAtoi(parts[0], &rank.rank) &&
                         absl::SimpleAtoi(parts[1], &rank.pid) &&
                         absl::SimpleAtoi(parts[2], &start_time);
    if (!is_life) continue;
    // Held before it is looked at: one life. One that has ended and is not reaped is over.
    const absl::StatusOr<ProcessHandle> process = ProcessHandle::Open(rank.pid);
    const auto stat = ReadProcStat(rank.pid);
    if (!process.ok() || !stat.ok() || stat->start_time != start_time) continue;
    if (!process->WaitEnd(Milliseconds(0))) ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace

std::vector<AttachedRank> FindAttachedRanks(const Place& place, Milliseconds timeout) {
  const auto status =
      AskDaemon(place, "status", nlohmann::json::object(), std::min(timeout, kAnswerTimeout));
  if (!status.ok()) return LivingOwners(place);
  std::vector<AttachedRank> ranks;
  for (const nlohmann::json& rank : status->value("ranks", nlohmann::json::array())) {
    if (!rank.value("connected", false)) continue;
    ranks.push_back({rank.value("rank", uint64_t{0}), rank.value("pid", 0)});
  }
  return ranks;
}

std::string Describe(const Place& place, const std::vector<AttachedRank>& ranks) {
  std::string named;
  for (size_t i = 0; i < std::min(ranks.size(), kNamedMax); ++i) {
    named += fmt::format("{}rank {}, pid {}", i == 0 ? "" : "; ", ranks[i].rank, ranks[i].pid);
  }
  if (ranks.size() > kNamedMax) named += fmt::format("; and {} more", ranks.size() - kNamedMax);
  return fmt::format("{} {} attached to {} ({})", ranks.size(),
                     ranks.size() == 1 ? "rank is" : "ranks are", place.Name(), named);
}

}  // namespace unreft::cli
