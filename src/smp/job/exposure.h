// Exposure: what the job would lose if nodes were lost now. Pure.
#pragma once

#include <unreft/cluster.pb.h>

#include "meta/job_store.h"
#include "smp/job/roll_call.h"

namespace unreft::smp {

// How many more losses each group stands, and what would be restored, by the newest reports.
ExposureReply ExposureOf(const meta::JobState& records, const RollCall& roll);

}  // namespace unreft::smp
