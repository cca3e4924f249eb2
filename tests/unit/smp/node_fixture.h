// A whole Node of a job of one node, over the fakes.
#pragma once

#include <memory>
#include <optional>

#include "base/check.h"
#include "smp/node/node.h"
#include "smp/node/own_meta.h"
#include "tests/unit/smp/smp_fixture.h"

namespace unreft::smp {

class NodeFixture : public SmpFixture {
 protected:
  NodeFixture() {
    options_.has_own_store = true;
    StartOwnMeta();
  }
  ~NodeFixture() override { StopNode(); }

  // As a new process has it.
  void StartOwnMeta() {
    InTurn([&] { own_meta_.emplace(*executor_, random_).Start([] {}); });
    Settle();
  }

  // With options_ as they are. What it does after that is to be waited for.
  void StartNode() {
    InTurn([&] { MakeNode(); });
  }
  // In a turn.
  void MakeNode() {
    NodeSeams seams{*executor_, pool_, random_, segments_, *records_, processes_, log_};
    seams.kv = &own_meta_->kv();
    seams.transport = &own_meta_->transport();
    node_ = std::make_unique<Node>(seams, options_);
    node_->Start(boot_id_, [](const absl::Status& status) {
      UNREFT_CHECK(status.ok(), "{}", status.ToString());
    });
  }
  void StopNode() {
    InTurn([&] { node_.reset(); });
  }

  std::optional<OwnMeta> own_meta_;
  std::unique_ptr<Node> node_;
};

}  // namespace unreft::smp
