// ReportParts: a node's report as it comes. What it says of each version stays in its encoding,
// since most of it was said and read before. Pure.
#pragma once

#include <unreft/cluster.pb.h>

#include <string_view>
#include <vector>

namespace unreft::smp {

struct ReportParts {
  NodeReport rest;                         // all but the versions
  std::vector<std::string_view> versions;  // a VersionHolding each, within the report's bytes
};

// Whether these are the bytes of a NodeReport, as far as they are read. Reads into memory that
// `parts` has already.
bool CutReport(std::string_view report, ReportParts& parts);

}  // namespace unreft::smp
