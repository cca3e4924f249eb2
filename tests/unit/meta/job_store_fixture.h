// JobStoreFixture: nodes with job stores over one meta store, which a test breaks, and whose
// records it writes behind their backs.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "meta/job_store.h"
#include "tests/unit/meta/meta_fixture.h"

namespace unreft::meta {

class JobStoreFixture : public MetaFixture {
 protected:
  // A node with a job store and, if it gets it, the leadership.
  struct Node : Process {
    struct Expected {
      std::string store_id;
      Stamp newest;
      TimelineRecord timelines;
    };
    Node(JobStoreFixture& test, std::string name, Expected expected = {})
        : Process(test),
          store(*kv, *executor, random, test.log_, "job", [this] { ++changes; }),
          leadership(
              *kv, *executor, test.log_, store.LeaderKey(), std::chrono::seconds(2),
              [](const std::string&) { return false; }, [] {}),
          value(std::move(name)) {
      test.InTurn(*this, [&] {
        store.Expect(expected.store_id, expected.newest, expected.timelines);
        store.Start();
      });
    }
    ~Node() { executor->Kill(); }

    int changes = 0;
    JobStore store;
    LeasedKey leadership;
    std::string value;
  };

  void Lead(Node& node) {
    PresenceRecord presence;
    presence.set_address(node.value);
    InTurn(node, [&] { node.leadership.Hold(presence.SerializeAsString()); });
    Settle();
    ASSERT_TRUE(node.leadership.held());
  }

  absl::Status Write(Node& node, const HeldKey& leadership, JobChange change) {
    std::optional<absl::Status> written;
    InTurn(node, [&] {
      node.store.Write(leadership, std::move(change), [&](absl::Status s) { written = s; });
    });
    Settle(std::chrono::seconds(3));
    return written.value_or(absl::InternalError("it was not answered"));
  }

  // As anybody who reaches the store can.
  void Put(Node& node, const std::string& name, const std::string& value) {
    InTurn(node, [&] {
      Txn txn;
      txn.then.push_back(PutOp{"unreft/job/" + name, value, LeaseId{}});
      node.kv->Commit(std::move(txn), [](const auto& result) { UNREFT_CHECK(result.ok()); });
    });
    Settle(std::chrono::seconds(1));
  }

  static std::string WrongView() {
    ViewRecord view;
    view.set_number(9);
    Group& group = *view.add_groups();
    group.add_slots(0);
    group.set_k(0);
    return view.SerializeAsString();
  }

  // In a store that is seeded with that epoch; its id.
  std::string Decide(Node& node, uint64_t epoch, TimelineRecord timelines) {
    Settle();
    Lead(node);
    JobChange decided = Seed(node, epoch);
    decided.timeline = std::move(timelines);
    UNREFT_CHECK(Write(node, node.leadership.holding(), std::move(decided)).ok());
    return node.store.state().store_id;
  }
  JobChange Seed(const Node& node, uint64_t epoch) {
    JobChange change = View(epoch);
    change.seed.emplace().set_store_id(node.store.state().store_id);
    change.seed->set_epoch(epoch);
    return change;
  }
  // Of a job that began with that one.
  static TimelineRecord Timelines(uint64_t first, uint64_t newest) {
    TimelineRecord record;
    record.add_chain()->set_timeline(newest);
    record.set_first_timeline(first);
    return record;
  }
  static JobChange View(uint64_t number) {
    JobChange change;
    change.view.emplace().set_number(number);
    return change;
  }
};

}  // namespace unreft::meta
