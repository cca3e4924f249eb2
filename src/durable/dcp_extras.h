// Reads the extras of `unreft.dcp` (docs/formats/dcp_extras.md): the entries of a checkpoint that
// are no tensors, and where each entry stands in the nested state dict. Pure; every byte is hostile
// until checked.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "durable/dcp_metadata.h"

namespace unreft::durable {

// Of the flat state dict.
struct DcpSavedEntry {
  std::vector<PathElement> path;  // in the nested one; empty where the planner did not say
  std::optional<Rank> value_of;   // the rank that has its value; none of tensors
  // Of a tensor without elements: the type as torch calls it, and the shape.
  std::optional<std::pair<std::string, std::vector<uint64_t>>> empty;
};

struct DcpExtras {
  // By name: where the value lies in the extras, as (offset, bytes), as the save planner serialised
  // it.
  std::map<std::string, std::pair<size_t, size_t>> values;
  std::map<std::string, DcpSavedEntry> catalogue;  // by name; of rank 0 alone
};

// What has its magic.
bool AreDcpExtras(std::string_view extras);

// Of what AreDcpExtras. DataLoss for what no writer has written, and for another format.
absl::StatusOr<DcpExtras> ReadDcpExtras(std::string_view extras);

}  // namespace unreft::durable
