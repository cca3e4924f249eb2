// OpenRank: that this process has a client for one rank, of which there can be one at a time: the
// daemon knows a rank by its process. Any thread; a forked child begins with none.
#pragma once

#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "snapshot/client.h"

namespace unreft::snapshot {

class OpenRank {
 public:
  // FailedPrecondition while another one of the same socket, job and rank lives.
  static absl::StatusOr<std::unique_ptr<OpenRank>> Claim(const ClientIdentity& identity);
  ~OpenRank();
  OpenRank(const OpenRank&) = delete;
  OpenRank& operator=(const OpenRank&) = delete;

 private:
  struct Open;

  OpenRank(Open& open, std::string key) : open_(open), key_(std::move(key)) {}

  static Open& OfThisProcess();

  Open& open_;
  const std::string key_;
};

}  // namespace unreft::snapshot
