// Whether what another node tells of itself can be believed: its numbers are within base/bounds.h,
// its timelines are a chain. Pure.
#pragma once

#include <absl/status/status.h>
#include <unreft/cluster.pb.h>

namespace unreft::smp {

// InvalidArgument, naming what is wrong: the number and its bound.
absl::Status CheckReport(const NodeReport& report);
absl::Status CheckHoldings(const google::protobuf::RepeatedPtrField<VersionHolding>& versions);

}  // namespace unreft::smp
