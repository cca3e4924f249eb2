// What the nodes of a job answer to one question, by whichever daemon is reached: it asks the
// others (smp/node/cluster_desk.h). A node that does not answer is part of it.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tools/cli/context.h"

namespace unreft::cli {

// Of a node slot.
struct JobNode {
  uint64_t node = 0;
  uint64_t place = 0;  // the number that its daemon was started with
  bool lost = false;
  bool left_out = false;
  absl::StatusOr<nlohmann::json> answer;
};

// The daemon's answer to "cluster", with what each node answers to `verb`: "status", "versions",
// "verify" or "plan". FailedPrecondition of a job of one node.
absl::StatusOr<nlohmann::json> AskJob(const Context& context, const std::string& verb,
                                      Milliseconds patience);

// What whoever leads the job answers, to whom any node passes it on. Unavailable when no node that
// is reached knows who does.
absl::StatusOr<nlohmann::json> AskLeader(const Context& context, const std::string& verb,
                                         const nlohmann::json& arguments);

// Whether the command is about a whole job of several nodes: all of `unreft up --nodes`, or a
// cluster, whose daemon is asked what it is.
absl::StatusOr<bool> IsOfSeveralNodes(const Context& context);

// By node.
std::vector<JobNode> NodesOf(const nlohmann::json& answer, const std::string& verb);

// {"job", "nodes": [{"node", "place", "running", and what it answered or "error"}]}, of nodes on
// this machine with "run_dir".
nlohmann::json NodesJson(const Context& context, const std::vector<JobNode>& nodes);

// A line of each node that did not answer.
std::string SilentNodes(const std::vector<JobNode>& nodes);

// OK when all answered but those that the job goes on without; else what the first failed with.
absl::Status AllAnswered(const std::vector<JobNode>& nodes);

}  // namespace unreft::cli
