#include "smp/job/report_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/bounds.h"
#include "base/format.h"
#include "meta/record_checks.h"
#include "smp/job/cluster_records.h"

namespace unreft::smp {
namespace {

struct Bounded {
  std::string_view name;
  uint64_t found;
  uint64_t most;
};

absl::Status Check(std::initializer_list<Bounded> numbers) {
  for (const auto& [name, found, most] : numbers) {
    if (found <= most) continue;
    return absl::InvalidArgumentError(fmt::format("{} {}, the largest is {}", name, found, most));
  }
  return absl::OkStatus();
}

absl::Status CheckRank(uint64_t rank) { return Check({{"rank", rank, kRanksMax - 1}}); }

}  // namespace

absl::Status CheckHolding(const VersionHolding& version) {
  absl::Status status = Check({{"version of timeline", version.timeline(), kTimelineMax},
                               {"version of step", version.step(), kStepMax}});
  for (const SealedRank& sealed : version.sealed()) {
    status.Update(CheckRank(sealed.rank()));
    status.Update(Check({{"world of ranks", sealed.world(), kRanksMax}}));
  }
  for (const EncodedMember& member : version.encoded()) {
    for (const uint64_t rank : member.ranks()) status.Update(CheckRank(rank));
  }
  for (const DescriptionHolding& description : version.descriptions()) {
    for (const uint64_t rank : description.ranks()) status.Update(CheckRank(rank));
    status.Update(Check({{"world of ranks", description.world(), kRanksMax}}));
  }
  return status;
}

absl::Status CheckNamedOnce(std::vector<Version> versions) {
  std::ranges::sort(versions);
  const auto twice = std::ranges::adjacent_find(versions);
  if (twice == versions.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format("version {} is named twice", *twice));
}

absl::Status CheckHoldings(const google::protobuf::RepeatedPtrField<VersionHolding>& versions) {
  std::vector<Version> named;
  for (const VersionHolding& version : versions) {
    if (absl::Status status = CheckHolding(version); !status.ok()) return status;
    named.push_back(VersionOf(version));
  }
  return CheckNamedOnce(std::move(named));
}

absl::Status CheckReport(const NodeReport& report) {
  absl::Status status = Check({
      {"round", std::max(report.round_applied(), report.round_closed()), kRoundMax},
      {"newest timeline", report.newest_timeline(), kTimelineMax},
      {"newest step", report.newest_step(), kStepMax},
      {"view", report.view(), kViewMax},
      {"epoch of the kept records", report.kept_epoch(), kEpochMax},
      {"world of ranks", report.world(), kRanksMax},
  });
  for (const AskingRank& asking : report.asking()) status.Update(CheckRank(asking.rank()));
  return status;
}

}  // namespace unreft::smp
