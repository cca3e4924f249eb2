// Before an attempt begins: whether its nodes have room for what they must hold then. A node whose
// memory is new makes its slabs and guards anew, for which there may be too little.
#pragma once

#include <absl/status/status.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/cli/deadline.h"
#include "tools/cli/place.h"

namespace unreft::cli {

// By node, the place where it is. Waits until none of them is short of memory, or a signal to stop
// waits for this process; ResourceExhausted, with the numbers, when one still is after `patience`.
// Each that is short is told once, as an event and in words. One that does not answer, or does not
// know what it will hold, is not waited for.
absl::Status WaitForMemory(
    const std::vector<Place>& nodes, Milliseconds timeout, Milliseconds patience,
    const std::function<void(const nlohmann::json& event, const std::string& text)>& tell);

}  // namespace unreft::cli
