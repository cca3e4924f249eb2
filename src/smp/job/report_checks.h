// Whether what another node tells of itself can be believed: its numbers are within base/bounds.h,
// its timelines are a chain. Pure.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

#include <vector>

#include "base/ids.h"

namespace unreft::smp {

// InvalidArgument, naming what is wrong: the number and its bound.
absl::Status CheckReport(const NodeReport& report);  // but for its versions
absl::Status CheckHolding(const VersionHolding& version);
absl::Status CheckNamedOnce(std::vector<Version> versions);
absl::Status CheckHoldings(const google::protobuf::RepeatedPtrField<VersionHolding>& versions);

}  // namespace unreft::smp
