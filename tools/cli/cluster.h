// Cluster: a job's nodes that all run on this machine, as `unreft up --nodes` has set them up.
//
//   RUN_DIR/cluster.json   what it consists of; who finds it knows that the job has several nodes
//   RUN_DIR/meta           the meta store (meta_control.h)
//   RUN_DIR/node<I>        the run directory of node I (place.h); from `nodes` on, of a spare
//
// A place is where a daemon and its memory are. Node I is at place I, until a spare takes its slot.
#pragma once

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tools/cli/daemon_control.h"
#include "tools/cli/place.h"

namespace unreft::cli {

struct Cluster {
  Place place;  // of the whole: its run directory has no daemon of its own
  uint64_t nodes = 1;
  uint64_t nodes_min = 1;  // with so many the job begins
  uint64_t spares = 0;  // daemons that wait for the slot of a lost node
  uint64_t data_chunks = 1;
  uint64_t parity_chunks = 0;
  std::string meta_address;
  // The PEM files of a job whose processes talk by TLS: ca.pem, of the meta store meta.pem and
  // meta.key, of node I nodeI.pem and nodeI.key. Empty: no TLS.
  std::string tls_dir;
  // Without TLS they talk by socket files, which no other user can reach; or, if this is set, by
  // TCP.
  bool insecure = false;
  StartRequest start;  // of each daemon; its words are the user's

  // "5", or "3:5" where the job begins with fewer.
  std::string Range() const;
  uint64_t places() const { return nodes + spares; }
  Place NodePlace(uint64_t place) const;
  // The node of a rank: consecutive ranks share one.
  uint64_t NodeOf(uint64_t rank, uint64_t ranks) const { return rank * nodes / ranks; }
  // `start`, with the words by which that node finds the others and shows who it is.
  StartRequest NodeRequest(uint64_t node) const;
  // The same of the meta store; the user's words are not for it.
  StartRequest MetaRequest() const;
};

// The cluster of that run directory; nothing if its job is of one node.
absl::StatusOr<std::optional<Cluster>> ReadCluster(const Place& place);
absl::Status WriteCluster(const Cluster& cluster);

// Removes what is in the run directory of the whole, after everything was stopped.
absl::Status RemoveCluster(const Cluster& cluster);

// Starts the daemon of one node, as it was started before. The node is new if its memory is gone.
absl::StatusOr<StartResult> StartNode(const Cluster& cluster, uint64_t node);

// Waits until the first so many nodes know each other: all are present, and there is a view. The
// answer to "cluster".
absl::StatusOr<nlohmann::json> WaitJoined(const Cluster& cluster, uint64_t nodes,
                                          Milliseconds timeout);

// Where the node is now, by an answer to "cluster"; its own place if that does not say.
uint64_t PlaceOf(const nlohmann::json& answer, uint64_t node);

// Whether the job has begun without the node, and it has not come since.
bool IsToCome(const nlohmann::json& answer, uint64_t node);

// Whether the answer is of a node that has read the view.
bool HasView(const nlohmann::json& answer);

// The answer of the first node that has read the view, else of the first that gives one;
// Unavailable when none does.
absl::StatusOr<nlohmann::json> AskCluster(
    const Cluster& cluster, Milliseconds timeout,
    const nlohmann::json& arguments = nlohmann::json::object());

// By node, the place where it is now; its own where nobody answers.
std::vector<Place> NodePlaces(const Cluster& cluster, Milliseconds timeout);

}  // namespace unreft::cli
