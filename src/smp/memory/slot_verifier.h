// SlotVerifier: reads sealed slots again on the work pool.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>

#include <memory>
#include <vector>

#include "base/executor.h"
#include "base/lifetime.h"
#include "base/work_pool.h"
#include "smp/memory/slot_store.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class SlotVerifier {
 public:
  SlotVerifier(Executor& executor, WorkPool& pool, SlotStore& slots);

  // Reads every given slot that is sealed; those that do not verify are quarantined, the geometry
  // of the others is written again where it has rotted. A slot that is freed meanwhile is left
  // alone and not read to the end. `done` gets the first failure, or Aborted when all that is
  // missing are slots that were freed: OK says that all of them were right when they were read.
  void Verify(const std::vector<Slot*>& slots, absl::AnyInvocable<void(absl::Status)> done);

 private:
  struct Run;
  struct Item;
  void Finish(Run& run, const Item& item);

  Executor& executor_;
  WorkPool& pool_;
  SlotStore& slots_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
