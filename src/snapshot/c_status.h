// CStatus: a client's status as the C ABI hands it out, and the strings that it points to.
#pragma once

#include <string>

#include "snapshot/status_board.h"
#include "unreft/c.h"

namespace unreft::snapshot {

class CStatus {
 public:
  // Its strings are good until the next call; `struct_bytes` is the caller's to set.
  unreft_status Of(ClientStatus status, std::string copier);

 private:
  std::string last_problem_;
  std::string copier_;
  std::string why_unprotected_;
  std::string unsampled_;
};

}  // namespace unreft::snapshot
