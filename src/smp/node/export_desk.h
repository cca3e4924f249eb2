// ExportDesk: durable copies (docs/durable_copy.md), a committed version written out of memory into
// a directory while training goes on. It touches no file itself, a drain does.
//
// A daemon runs the copies that it is asked for, whether or not it leads the job (ExportRun), and
// where it leads those that are due by themselves (OwnCopies). Every node does its part for
// whoever runs one (ExportPart). Where it leads, it also brings one back when memory has nothing
// (CopyLoads), and every node its part (LoadPart).
#pragma once

#include <absl/functional/any_invocable.h>

#include <memory>
#include <string>

#include "base/lifetime.h"
#include "base/session_frames.h"
#include "smp/core/drain_process.h"
#include "smp/desk/node_state.h"
#include "smp/job/member.h"
#include "smp/node/copy_loads.h"
#include "smp/node/export_part.h"
#include "smp/node/export_run.h"
#include "smp/node/load_part.h"
#include "smp/node/own_copies.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class ExportDesk {
 public:
  using Reply = absl::AnyInvocable<void(AdminReply)>;

  // Other nodes' questions are answered from now on. `own`: blocks of this node. All outlive this;
  // without a drain this node writes nothing.
  ExportDesk(NodeState& state, Member& member, BlockReads::Own own, DrainProcess* drain,
             ExportPolicy policy = {});
  ~ExportDesk();

  // Of "export", "export-status" and "export-cancel". Calls `reply` once, in this turn or a later
  // one.
  void Answer(const AdminRequest& request, Reply reply);
  static bool Answers(const std::string& verb);

  const OwnCopies& own() const { return own_; }
  // Copies that this daemon has run, and what failed of it, looks at the directory counted.
  uint64_t made() const { return made_; }
  uint64_t failed() const { return failed_ + own_.failed_surveys(); }

 private:
  void Begin(const AdminRequest& request, Reply reply);
  void BeginRun(ExportWish wish);
  void OnRunEnded();
  bool IsUnderWay() const;
  void TickLater();
  std::string StatusText() const;

  NodeState& state_;
  Member& member_;
  DrainProcess* const drain_;
  OwnCopies own_;
  ExportPart part_;
  LoadPart load_part_;
  std::unique_ptr<CopyLoads> loads_;
  std::unique_ptr<ExportRun> run_;  // that this daemon runs, or ran last
  uint64_t made_ = 0;
  uint64_t failed_ = 0;
  TimerId tick_ = TimerId::kNone;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
