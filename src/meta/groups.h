// Protection groups: which nodes protect each other. Pure.
#pragma once

#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/ids.h"
#include "ec/erasure_code.h"
#include "ec/group.h"

namespace unreft::meta {

struct GroupCandidate {
  NodeSlot slot;
  std::string failure_domain;  // empty: a domain of its own
};

struct Grouping {
  std::vector<ec::Group> groups;  // by their first slot
  // Which groups have more than m members in one failure domain, with the numbers; empty when none
  // has.
  std::string exposure;
};

// Which groups have more than m members in one failure domain, with the numbers; empty when none
// has. An empty domain is one of its own.
std::string DescribeExposure(const std::vector<ec::Group>& groups,
                             const std::map<NodeSlot, std::string>& domain_of, uint32_t m);

// The k and m of the groups of so many nodes of a job whose groups are to be of k + m: these, or
// where fewer nodes are left one group of them all, with as many of the m parities as leave it a
// data chunk.
ec::CodeShape ShapeFor(uint64_t nodes, uint32_t k, uint32_t m);

// Cuts the nodes into floor(N / (k + m)) groups whose sizes differ by at most one, all with m
// parities (docs/protocol.md, rule 19), so that as few members as possible of a group share a
// failure domain: nodes are dealt out domain by domain, the largest first. InvalidArgument, naming
// k, m and the numbers, for fewer than k + m nodes or a slot that is there twice. The same for the
// same nodes in any order.
absl::StatusOr<Grouping> FormGroups(std::vector<GroupCandidate> nodes, uint32_t k, uint32_t m);

}  // namespace unreft::meta
