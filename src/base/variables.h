// The environment variables UNREFT_..., and those that look like one and are none.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace unreft {

// Whether some program of Unreft reads it.
bool IsVariable(std::string_view name);

struct UnknownVariable {
  std::string name;
  std::string nearest;       // that is one
  bool is_mistyped = false;  // so near that it is likely meant
  std::string Text() const;  // a line for people
};

// Of an environment, as `environ`. A name may come from a cluster manager, which made it from that
// of a service.
std::vector<UnknownVariable> FindUnknownVariables(const char* const* environment);

}  // namespace unreft
