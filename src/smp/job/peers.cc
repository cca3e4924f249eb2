#include "smp/job/peers.h"

#include <fmt/format.h>

#include <limits>
#include <optional>
#include <utility>

#include "base/format.h"

namespace unreft::smp {

// Goes from page to page.
struct Peers::PagedCall {
  std::string address;
  std::string who;
  std::string method;
  std::string body;
  Duration timeout;
  Time end;
  PagedAnswer answer;
  Transport::CallDone done;
};

Peers::Peers(Executor& executor, Transport& transport, const meta::JobState& job_state,
             std::string job, NodeSlot self, RandomId incarnation,
             absl::AnyInvocable<void()> on_other_store, const PageLimits& limits)
    : executor_(executor),
      transport_(transport),
      job_state_(job_state),
      job_(std::move(job)),
      self_(self),
      incarnation_(incarnation.begin(), incarnation.end()),
      on_other_store_(std::move(on_other_store)),
      limits_(limits),
      answers_(executor, limits) {}

Peers::~Peers() {
  for (const std::string& method : served_) transport_.Serve(method, nullptr);
  transport_.ServeReads(nullptr);
}

absl::Status Peers::Malformed(const std::string& method, NodeSlot peer, size_t bytes) {
  return absl::InvalidArgumentError(
      fmt::format("node {}: a message of '{}' of {} bytes does not parse", peer, method, bytes));
}

absl::StatusOr<std::string> Peers::Encoded(const std::string& method,
                                           const google::protobuf::MessageLite& reply) {
  const size_t bytes = reply.ByteSizeLong();
  if (bytes <= std::numeric_limits<int>::max()) return reply.SerializeAsString();
  return absl::ResourceExhaustedError(
      fmt::format("the answer to '{}' has {} bytes, the most are {}", method, bytes,
                  std::numeric_limits<int>::max()));
}

absl::StatusOr<std::string> Peers::AddressOf(NodeSlot slot) const {
  if (slot == self_) return transport_.address();
  const PresenceRecord* const presence = PresenceOf(slot);
  if (presence != nullptr) return presence->address();
  return absl::UnavailableError(fmt::format("node {} is not present", slot));
}

const PresenceRecord* Peers::PresenceOf(NodeSlot slot) const { return job_state_.PresenceOf(slot); }

Envelope Peers::NewEnvelope(const std::string& body) const {
  Envelope envelope;
  envelope.set_job(job_);
  envelope.set_store_id(job_state_.store_id);
  envelope.set_view(job_state_.view.value.number());
  envelope.set_slot(self_.value);
  envelope.set_incarnation(incarnation_);
  envelope.set_body(body);
  return envelope;
}

absl::StatusOr<Envelope> Peers::Open(const std::string& message) {
  Envelope envelope;
  if (!envelope.ParseFromString(message)) {
    return absl::InvalidArgumentError(
        fmt::format("an envelope of {} bytes does not parse", message.size()));
  }
  if (envelope.job() != job_) {
    return absl::PermissionDeniedError(fmt::format(
        "node {} serves job '{}', the message is of job '{}'", self_, job_, envelope.job()));
  }
  if (job_state_.store_id.empty() || envelope.store_id() != job_state_.store_id) {
    on_other_store_();
    return absl::AbortedError(
        fmt::format("node {} and node {} have different meta stores", self_, envelope.slot()));
  }
  const ViewRecord& view = job_state_.view.value;
  if (envelope.view() >= view.number()) return envelope;
  for (const ViewMember& member : view.members()) {
    if (member.slot() != envelope.slot() || member.incarnation() == envelope.incarnation())
      continue;
    return absl::FailedPreconditionError(
        fmt::format("node {} speaks of view {}; in view {} its slot is another incarnation's",
                    envelope.slot(), envelope.view(), view.number()));
  }
  return envelope;
}

void Peers::Call(NodeSlot to, const std::string& method, const std::string& body, Duration timeout,
                 Transport::CallDone done) {
  absl::StatusOr<std::string> address = AddressOf(to);
  // An address that nobody has: the transport says so in a later turn.
  transport_.Call(address.value_or(""), method, Wrap(body), timeout,
                  lifetime_.Bind([this, status = address.status(), done = std::move(done)](
                                     absl::StatusOr<std::string> reply) mutable {
                    if (absl::IsAborted(reply.status())) on_other_store_();
                    if (!status.ok()) return done(status);
                    done(std::move(reply));
                  }));
}

void Peers::CallAt(const std::string& address, const std::string& method, const std::string& body,
                   Duration timeout, Transport::CallDone done) {
  transport_.Call(
      address, method, Wrap(body), timeout,
      lifetime_.Bind([done = std::move(done)](absl::StatusOr<std::string> reply) mutable {
        done(std::move(reply));
      }));
}

void Peers::CallInPages(NodeSlot to, const std::string& method, const std::string& body,
                        Duration timeout, Transport::CallDone done) {
  absl::StatusOr<std::string> address = AddressOf(to);
  // An address that nobody has, as in Call.
  CallInPagesAt(to, address.value_or(""), method, body, timeout,
                [status = address.status(),
                 done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
                  if (!status.ok()) return done(status);
                  done(std::move(answer));
                });
}

void Peers::CallInPagesAt(NodeSlot to, const std::string& address, const std::string& method,
                          const std::string& body, Duration timeout, Transport::CallDone done) {
  AskPage(std::make_unique<PagedCall>(
      PagedCall{address, fmt::format("node {}", to), method, body, timeout,
                executor_.Now() + kTimeoutsOfAll * timeout, PagedAnswer(limits_),
                [this, done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
                  if (absl::IsAborted(answer.status())) on_other_store_();
                  done(std::move(answer));
                }}));
}

// All pages come from one address: who has another by then is another process.
void Peers::AskPage(std::unique_ptr<PagedCall> call) {
  Envelope envelope = NewEnvelope(call->body);
  *envelope.mutable_page() = call->answer.Wish();
  const PagedCall& asked = *call;
  transport_.Call(
      asked.address, asked.method, envelope.SerializeAsString(), asked.timeout,
      lifetime_.Bind([this, call = std::move(call)](absl::StatusOr<std::string> reply) mutable {
        if (!reply.ok()) return call->done(reply.status());
        const absl::StatusOr<bool> is_whole = call->answer.Take(*std::move(reply));
        if (!is_whole.ok()) {
          const absl::Status& why = is_whole.status();
          return call->done(absl::Status(
              why.code(), fmt::format("{} {}: {}", call->who, call->method, why.message())));
        }
        if (*is_whole) return call->done(call->answer.TakeWhole());
        if (executor_.Now() < call->end) return AskPage(std::move(call));
        call->done(absl::DeadlineExceededError(
            fmt::format("{} {}: {} have come in {} times the {} s that one page may take",
                        call->who, call->method, call->answer.Progress(), kTimeoutsOfAll,
                        std::chrono::duration<double>(call->timeout).count())));
      }));
}

void Peers::Probe(const std::string& address, Duration timeout,
                  absl::AnyInvocable<void(bool)> done) {
  transport_.Call(
      address, "exposure", Wrap(""), timeout,
      lifetime_.Bind([done = std::move(done)](const absl::StatusOr<std::string>& reply) mutable {
        // It does not lead, or has given this memory up, or knows another store.
        done(reply.ok() || absl::IsFailedPrecondition(reply.status()) ||
             absl::IsAborted(reply.status()));
      }));
}

void Peers::Follow() {
  // Revisions of another store say nothing.
  if (std::exchange(followed_in_, job_state_.store_id) != job_state_.store_id) followed_ = {};
  meta::Revision newest = followed_;
  for (const auto& [slot, modified] : job_state_.present_modified) {
    if (modified <= followed_) continue;
    newest = std::max(newest, modified);
    if (slot != self_) transport_.ReconnectNow(job_state_.present.at(slot).address());
  }
  followed_ = newest;
}

TransferId Peers::Read(NodeSlot from, const std::string& body, std::span<std::byte> into,
                       Duration timeout, Transport::ReadDone done) {
  absl::StatusOr<std::string> address = AddressOf(from);
  return transport_.Read(address.value_or(""), Wrap(body), into, timeout,
                         lifetime_.Bind([status = address.status(), done = std::move(done)](
                                            absl::StatusOr<std::string> header) mutable {
                           if (!status.ok()) return done(status);
                           done(std::move(header));
                         }));
}

void Peers::Serve(const std::string& method, CallHandler handler) {
  served_.push_back(method);
  transport_.Serve(method, [this, method, handler = std::move(handler)](
                               const std::string& request, Transport::CallDone done) mutable {
    absl::StatusOr<Envelope> envelope = Open(request);
    if (!envelope.ok()) return done(envelope.status());
    if (envelope->has_page()) {
      std::optional<std::string> page = answers_.Find({method, envelope->body()}, envelope->page());
      if (page) return done(*std::move(page));
      done = InPages(method, *envelope, std::move(done));
    }
    handler(
        NodeSlot{envelope->slot()}, std::move(*envelope->mutable_body()),
        lifetime_.Bind([this, done = std::move(done)](absl::StatusOr<std::string> reply) mutable {
          if (absl::IsAborted(reply.status())) on_other_store_();
          done(std::move(reply));
        }));
  });
}

// Called in turns in which this lives (Serve).
Transport::CallDone Peers::InPages(const std::string& method, const Envelope& envelope,
                                   Transport::CallDone done) {
  return [this, question = KeptAnswers::Question{method, envelope.body()}, wish = envelope.page(),
          done = std::move(done)](absl::StatusOr<std::string> answer) mutable {
    if (answer.ok()) answer = answers_.Take(question, wish, *std::move(answer));
    done(std::move(answer));
  };
}

void Peers::ServeReads(ReadHandler handler) {
  transport_.ServeReads([this, handler = std::move(handler)](
                            const std::string& request, uint64_t bytes,
                            absl::AnyInvocable<void(absl::StatusOr<ReadSource>)> done) mutable {
    absl::StatusOr<Envelope> envelope = Open(request);
    if (!envelope.ok()) return done(envelope.status());
    handler(NodeSlot{envelope->slot()}, std::move(*envelope->mutable_body()), bytes,
            std::move(done));
  });
}

}  // namespace unreft::smp
