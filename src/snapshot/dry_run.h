// DryRun: a client that only says what its rank would restore. It needs no daemon: the first
// tensors that its caller names are written to a file of the rank, and that is all it is for
// (`unreft run --dry-run`, docs/formats/layout_file.md).
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <memory>
#include <string>

#include "snapshot/client.h"
#include "snapshot/given_tensors.h"

namespace unreft::snapshot {

// The directory of the ranks' files; empty: this is no dry run.
std::string DryRunDirectory();

// Used by one thread at a time.
class DryRun {
 public:
  static absl::StatusOr<std::unique_ptr<DryRun>> Begin(const ClientIdentity& identity,
                                                       bool any_world);

  // Writes the file, whole or not at all, unless that is done. UNREFT_DRY_RUN, as of Ended, if it
  // is there; another error if it could not be written.
  absl::Status Write(const GivenTensors& tensors);
  // UNREFT_DRY_RUN: nothing follows but the end of the process.
  absl::Status Ended() const;

 private:
  DryRun(ClientIdentity identity, bool any_world, uint64_t node)
      : identity_(std::move(identity)), any_world_(any_world), node_(node) {}

  const ClientIdentity identity_;
  const bool any_world_;
  const uint64_t node_;
  size_t tensors_ = 0;
  bool is_written_ = false;
};

}  // namespace unreft::snapshot
