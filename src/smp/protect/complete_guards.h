// CompleteGuards: what the complete guards of this node hold, for its coordinator, for who verifies
// them, and for other nodes.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <memory>
#include <string>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/work_pool.h"
#include "smp/job/protection.h"
#include "smp/protect/guard_store.h"
#include "smp/protect/slab_source.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class CompleteGuards {
 public:
  // All references outlive this.
  CompleteGuards(Executor& executor, WorkPool& pool, GuardStore& guards, NodeSlot self,
                 uint32_t block_bytes)
      : executor_(executor), pool_(pool), guards_(guards), self_(self), block_bytes_(block_bytes) {}

  std::vector<GuardHeld> Held() const;
  // Of other slots' slabs.
  std::vector<std::string> DescribedManifests(Version version) const;
  // Null without a complete guard of the version.
  std::shared_ptr<const GuardRecord> RecordOf(Version version) const;
  // The same for another node, without descriptions. NotFound.
  absl::StatusOr<GuardRecord> Describe(Version version) const;

  // Reads the guard of the version again, if there is one; it is quarantined when it does not
  // verify.
  void Verify(Version version, absl::AnyInvocable<void(absl::Status)> done);

  // Of kind STORED_PARITY.
  void Read(const ReadRequest& request, uint64_t bytes, SlabSource::ReadDone done);

 private:
  Executor& executor_;
  WorkPool& pool_;
  GuardStore& guards_;
  const NodeSlot self_;
  const uint32_t block_bytes_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
