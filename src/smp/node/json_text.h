// JSON as the daemon answers it.
#pragma once

#include <string>

namespace unreft::smp {

// What is no UTF-8 is replaced: a document with a bad string in it is better than none. `Json`:
// nlohmann's, of either order.
template <typename Json>
std::string JsonText(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace unreft::smp
