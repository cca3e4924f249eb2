// What callers of the C ABI give (unreft/c.h), checked and as the client's own types. Pure, but for
// the environment.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "snapshot/client.h"
#include "snapshot/given_tensors.h"
#include "unreft/c.h"

namespace unreft::snapshot {

// Of the struct as it was first.
inline constexpr size_t kFirstOptionsBytes = offsetof(unreft_open_options, device_checksum);

inline constexpr size_t kFirstTensorBytes = offsetof(unreft_tensor, memory_order);
inline constexpr size_t kFirstDecisionBytes = offsetof(unreft_decision, tensor_bytes);

absl::Status MissingArgument(const char* what);

// Callers compiled with an older header give shorter structs, with a newer one longer ones.
template <typename Struct>
absl::Status CheckStruct(const Struct* value, size_t bytes_min, const char* what) {
  if (value == nullptr) return MissingArgument(what);
  if (value->struct_bytes >= bytes_min && value->struct_bytes <= size_t{1} << 16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      fmt::format("{}: needed struct_bytes of {} or more, found {} (call its _init)", what,
                  bytes_min, value->struct_bytes));
}

// What is not given comes from the environment.
absl::StatusOr<ClientIdentity> ToIdentity(const unreft_open_options& options);
absl::StatusOr<ClientOptions> ToOptions(const unreft_open_options& given);
KeepWaiting ToKeepWaiting(const unreft_open_options& given);

absl::StatusOr<Duration> ToDuration(int64_t ms, const char* what);

// The elements of the array lie as far apart as the caller's header says a struct is long.
absl::StatusOr<GivenTensors> ToTensors(const unreft_tensor* tensors, size_t count);

}  // namespace unreft::snapshot
