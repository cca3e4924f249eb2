// Peers: the other nodes of the job, by node slot. Transport with addresses looked up, every
// message in an envelope, and strangers and the past refused.
//
// A request carries the job, the meta store's id, the sender's view and its incarnation. The
// receiver refuses another job's (PermissionDenied), another store's (Aborted), and that of a
// sender whose memory its own, newer view has given up (FailedPrecondition): so nothing of an
// earlier life is believed. When two nodes know different stores, both read theirs again.
//
// An answer that may be larger than a message is asked for in pages (docs/protocol.md, rule 33).
// Whoever serves a method gives any answer of it in pages, if it is so asked.
#pragma once

#include <absl/functional/any_invocable.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>
#include <unreft/cluster.pb.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/executor.h"
#include "base/ids.h"
#include "base/lifetime.h"
#include "base/random.h"
#include "meta/job_store.h"
#include "smp/job/kept_answers.h"
#include "smp/job/paged_answer.h"
#include "transport/transport.h"

namespace unreft::smp {

// Single-threaded on the node's executor.
class Peers {
 public:
  // Answers Aborted where one of both has read of the store what is so no more: both read it again.
  using CallHandler =
      absl::AnyInvocable<void(NodeSlot from, std::string body, Transport::CallDone done)>;
  using ReadHandler =
      absl::AnyInvocable<void(NodeSlot from, std::string body, uint64_t bytes,
                              absl::AnyInvocable<void(absl::StatusOr<ReadSource>)> done)>;

  Peers(
      Executor& executor, Transport& transport, const meta::JobState& job_state, std::string job,
      NodeSlot self, RandomId incarnation, absl::AnyInvocable<void()> on_other_store = [] {},
      const PageLimits& limits = {});
  ~Peers();

  NodeSlot self() const { return self_; }
  // Null when nobody is present in that slot, as the store says.
  const PresenceRecord* PresenceOf(NodeSlot slot) const;

  // To this node itself, too. Unavailable when nobody is present in that slot.
  void Call(NodeSlot to, const std::string& method, const std::string& body, Duration timeout,
            Transport::CallDone done);
  // To whoever of this job is at that address, in a slot or not.
  void CallAt(const std::string& address, const std::string& method, const std::string& body,
              Duration timeout, Transport::CallDone done);
  // As Call, for an answer in pages, each of which may take `timeout`, and all of them together
  // kTimeoutsOfAll times as long. Fails as a call for one page does and as PagedAnswer::Take does,
  // naming who answers and what; DeadlineExceeded when not all has come in time.
  static constexpr int kTimeoutsOfAll = 10;
  void CallInPages(NodeSlot to, const std::string& method, const std::string& body,
                   Duration timeout, Transport::CallDone done);
  // The same, of who is or waits to be in that slot and answers at that address.
  void CallInPagesAt(NodeSlot to, const std::string& address, const std::string& method,
                     const std::string& body, Duration timeout, Transport::CallDone done);
  // Whether a daemon of this job answers there.
  void Probe(const std::string& address, Duration timeout, absl::AnyInvocable<void(bool)> done);
  TransferId Read(NodeSlot from, const std::string& body, std::span<std::byte> into,
                  Duration timeout, Transport::ReadDone done);
  void Cancel(TransferId transfer) { transport_.Cancel(transfer); }

  // The store's records are others: who has come is connected to at once.
  void Follow();

  void Serve(const std::string& method, CallHandler handler);
  void ServeReads(ReadHandler handler);

  // Call with a protobuf request and reply.
  template <typename Reply, typename Request>
  void Ask(NodeSlot to, const std::string& method, const Request& request, Duration timeout,
           absl::AnyInvocable<void(absl::StatusOr<Reply>)> done) {
    Call(to, method, request.SerializeAsString(), timeout,
         Parsed<Reply>(to, method, std::move(done)));
  }
  // CallInPages with these: for a reply that grows with what ranks have.
  template <typename Reply, typename Request>
  void AskInPages(NodeSlot to, const std::string& method, const Request& request, Duration timeout,
                  absl::AnyInvocable<void(absl::StatusOr<Reply>)> done) {
    CallInPages(to, method, request.SerializeAsString(), timeout,
                Parsed<Reply>(to, method, std::move(done)));
  }

  template <typename Reply, typename Request>
  void AskInPagesAt(NodeSlot to, const std::string& address, const std::string& method,
                    const Request& request, Duration timeout,
                    absl::AnyInvocable<void(absl::StatusOr<Reply>)> done) {
    CallInPagesAt(to, address, method, request.SerializeAsString(), timeout,
                  Parsed<Reply>(to, method, std::move(done)));
  }

  // A handler of a protobuf request that answers with a protobuf reply.
  template <typename Request, typename Reply>
  void Answer(
      const std::string& method,
      absl::AnyInvocable<void(NodeSlot, Request, absl::AnyInvocable<void(absl::StatusOr<Reply>)>)>
          handler) {
    Serve(method, [method, handler = std::move(handler)](NodeSlot from, const std::string& body,
                                                         Transport::CallDone done) mutable {
      Request request;
      if (!request.ParseFromString(body)) return done(Malformed(method, from, body.size()));
      handler(from, std::move(request),
              [method, done = std::move(done)](absl::StatusOr<Reply> reply) mutable {
                done(reply.ok() ? Encoded(method, *reply) : reply.status());
              });
    });
  }

 private:
  struct PagedCall;

  static absl::Status Malformed(const std::string& method, NodeSlot peer, size_t bytes);
  // ResourceExhausted for one that protobuf cannot encode, since it has 2 GiB or more.
  static absl::StatusOr<std::string> Encoded(const std::string& method,
                                             const google::protobuf::MessageLite& reply);
  template <typename Reply>
  static Transport::CallDone Parsed(NodeSlot from, const std::string& method,
                                    absl::AnyInvocable<void(absl::StatusOr<Reply>)> done) {
    return [from, method, done = std::move(done)](absl::StatusOr<std::string> bytes) mutable {
      if (!bytes.ok()) return done(bytes.status());
      Reply reply;
      if (!reply.ParseFromString(*bytes)) return done(Malformed(method, from, bytes->size()));
      done(std::move(reply));
    };
  }
  void AskPage(std::unique_ptr<PagedCall> call);
  Transport::CallDone InPages(const std::string& method, const Envelope& envelope,
                              Transport::CallDone done);
  absl::StatusOr<std::string> AddressOf(NodeSlot slot) const;
  Envelope NewEnvelope(const std::string& body) const;
  std::string Wrap(const std::string& body) const { return NewEnvelope(body).SerializeAsString(); }
  absl::StatusOr<Envelope> Open(const std::string& message);

  Executor& executor_;
  Transport& transport_;
  const meta::JobState& job_state_;
  const std::string job_;
  const NodeSlot self_;
  const std::string incarnation_;
  absl::AnyInvocable<void()> on_other_store_;
  const PageLimits limits_;
  KeptAnswers answers_;
  std::string followed_in_;  // the store's id
  meta::Revision followed_;  // of the newest presence that was followed
  std::vector<std::string> served_;
  Lifetime lifetime_;
};

}  // namespace unreft::smp
