// ReadChecker: while ranks restore a version of which nothing is lost, that nothing of it is
// decoded (docs/protocol.md, rule 31).
#pragma once

#include <unreft/cluster.pb.h>

#include <memory>
#include <optional>

#include "base/ids.h"
#include "tests/sim/trace.h"
#include "transport/transport.h"

namespace unreft::sim {

class ReadChecker {
 public:
  explicit ReadChecker(Trace& trace) : trace_(trace) {}

  // What that node reads through it is looked at. The checker outlives it.
  std::unique_ptr<Transport> Watch(NodeSlot reader, std::unique_ptr<Transport> transport);

  // Nodes begin to restore that version, of which nothing is lost.
  void Begin(Version restored) { restored_ = restored; }

 private:
  class WatchedTransport;
  void OnRead(NodeSlot reader, const ReadRequest& request);

  Trace& trace_;
  std::optional<Version> restored_;
};

}  // namespace unreft::sim
