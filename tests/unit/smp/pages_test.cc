// Answers between nodes in pages (docs/protocol.md, rule 33): who asks, who answers, and both.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "base/crc32c.h"
#include "tests/unit/smp/two_peers_fixture.h"

namespace unreft::smp {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr PageLimits kLimits{.page_bytes = 10,
                             .answer_bytes_max = 1000,
                             .kept_bytes_max = 126,
                             .kept_for = milliseconds(200)};

uint32_t CrcOf(const std::string& bytes) { return Crc32c(std::as_bytes(std::span(bytes))); }

std::string TextOf(size_t bytes, char first = 'a') {
  std::string text;
  for (size_t i = 0; i < bytes; ++i) text += static_cast<char>(first + i % 26);
  return text;
}

Page PageOf(const std::string& whole, uint64_t offset, uint64_t bytes = kLimits.page_bytes) {
  Page page;
  page.set_whole_crc(CrcOf(whole));
  page.set_whole_bytes(whole.size());
  page.set_offset(offset);
  page.set_bytes(whole.substr(offset, bytes));
  return page;
}

// --- who asks ---

class PagedAnswerTest : public testing::Test {
 protected:
  absl::StatusOr<bool> Take(const Page& page) { return answer_.Take(page.SerializeAsString()); }
  std::string FailureOf(const Page& page) { return std::string(Take(page).status().message()); }

  PagedAnswer answer_{kLimits};
};

TEST_F(PagedAnswerTest, WhatFitsIntoAPageIsWholeAtOnce) {
  EXPECT_EQ(answer_.Wish().offset(), 0u);
  EXPECT_EQ(answer_.Wish().bytes_max(), 10u);
  EXPECT_EQ(Take(PageOf(TextOf(10), 0)).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), TextOf(10));
}

TEST_F(PagedAnswerTest, AnAnswerOfNothingIsWholeToo) {
  EXPECT_EQ(Take(PageOf("", 0)).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), "");
}

TEST_F(PagedAnswerTest, PagesArePutTogether) {
  const std::string whole = TextOf(25);
  EXPECT_EQ(Take(PageOf(whole, 0)).value(), false);
  EXPECT_EQ(answer_.Wish().offset(), 10u);
  EXPECT_EQ(answer_.Wish().whole_bytes(), 25u);
  EXPECT_EQ(answer_.Wish().whole_crc(), CrcOf(whole));
  EXPECT_EQ(Take(PageOf(whole, 10)).value(), false);
  EXPECT_EQ(Take(PageOf(whole, 20)).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), whole);
}

TEST_F(PagedAnswerTest, AnotherAnswerBeginsAnew) {
  const std::string other = TextOf(15, 'A');
  ASSERT_EQ(Take(PageOf(TextOf(25), 0)).value(), false);
  ASSERT_EQ(Take(PageOf(other, 0)).value(), false);
  EXPECT_EQ(answer_.Wish().offset(), 10u);
  EXPECT_EQ(answer_.Wish().whole_bytes(), 15u);
  ASSERT_EQ(Take(PageOf(other, 10)).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), other);
}

TEST_F(PagedAnswerTest, WhatNeverStaysTheSameIsGivenUp) {
  for (uint32_t i = 0; i <= PagedAnswer::kChangesMax; ++i) {
    ASSERT_EQ(Take(PageOf(TextOf(25 + i), 0)).value(), false) << i;
  }
  const absl::Status last = Take(PageOf(TextOf(99), 0)).status();
  EXPECT_TRUE(absl::IsUnavailable(last)) << last;
  EXPECT_THAT(std::string(last.message()), HasSubstr("another one 5 times"));
}

TEST_F(PagedAnswerTest, WhatIsSaidToBeTooLargeIsNotTaken) {
  for (const uint64_t bytes : {uint64_t{1001}, UINT64_MAX}) {
    Page page = PageOf(TextOf(25), 0);
    page.set_whole_bytes(bytes);
    PagedAnswer answer(kLimits);
    const absl::Status status = answer.Take(page.SerializeAsString()).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(status.message(),
              fmt::format("the answer has {} bytes, answer_bytes_max is 1000", bytes));
  }
}

TEST_F(PagedAnswerTest, APageMayHaveFewerBytesThanWereAskedFor) {
  const std::string whole = TextOf(25);
  EXPECT_EQ(Take(PageOf(whole, 0, 9)).value(), false);
  EXPECT_EQ(answer_.Wish().offset(), 9u);
  EXPECT_EQ(answer_.Progress(), "9 of 25 bytes");
  EXPECT_EQ(Take(PageOf(whole, 9)).value(), false);
  EXPECT_EQ(Take(PageOf(whole, 19)).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), whole);
}

TEST_F(PagedAnswerTest, APageHasNothingButWhatWasAskedFor) {
  const std::string whole = TextOf(25);
  const Page wrong[] = {PageOf(whole, 0, 0), PageOf(whole, 0, 11), PageOf(whole, 10)};
  for (const Page& page : wrong) {
    PagedAnswer answer(kLimits);
    const absl::Status status = answer.Take(page.SerializeAsString()).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("of 25, needed 10 at 0"));
  }
  ASSERT_EQ(Take(PageOf(whole, 0)).value(), false);
  EXPECT_THAT(FailureOf(PageOf(whole, 0)), HasSubstr("10 bytes at 0 of 25, needed 10 at 10"));
}

TEST_F(PagedAnswerTest, BytesThatAreNotThoseThatWereNamedAreNotTaken) {
  const std::string whole = TextOf(15);
  ASSERT_EQ(Take(PageOf(whole, 0)).value(), false);
  Page last = PageOf(whole, 10);
  last.set_bytes("xxxxx");
  const absl::Status status = Take(last).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(fmt::format("needed {:08x}", CrcOf(whole))));
}

TEST_F(PagedAnswerTest, AnEarlierReleaseAnswersWhole) {
  ManifestReply reply;
  for (int i = 0; i < 9; ++i) reply.add_manifests(TextOf(20));
  EXPECT_EQ(answer_.Take(reply.SerializeAsString()).value(), true);
  EXPECT_EQ(answer_.TakeWhole(), reply.SerializeAsString());
}

// --- who answers ---

class KeptAnswersTest : public SmpFixture {
 protected:
  static PageWish Wish(uint64_t offset, const std::string& whole = "") {
    PageWish wish;
    wish.set_offset(offset);
    wish.set_bytes_max(10);
    wish.set_whole_bytes(whole.size());
    wish.set_whole_crc(CrcOf(whole));
    return wish;
  }
  static Page Parsed(const std::string& bytes) {
    Page page;
    EXPECT_TRUE(page.ParseFromString(bytes));
    return page;
  }
  Page Take(const PageWish& wish, const std::string& answer) {
    std::string page;
    InTurn([&] { page = answers_.Take(question_, wish, answer).value(); });
    return Parsed(page);
  }
  std::optional<Page> Find(const PageWish& wish) {
    std::optional<std::string> page;
    InTurn([&] { page = answers_.Find(question_, wish); });
    return page ? std::optional(Parsed(*page)) : std::nullopt;
  }

  static constexpr uint64_t kQuestionBytes = 13;
  KeptAnswers::Question question_{"meta", "of node 1"};
  KeptAnswers answers_{*executor_, kLimits};
};

TEST_F(KeptAnswersTest, WhatFitsIntoAPageIsNotKept) {
  EXPECT_EQ(Take(Wish(0), TextOf(10)).bytes(), TextOf(10));
  EXPECT_EQ(answers_.kept_bytes(), 0u);
}

TEST_F(KeptAnswersTest, TheNextPagesAreOfTheSameAnswer) {
  const std::string whole = TextOf(25);
  const Page first = Take(Wish(0), whole);
  EXPECT_EQ(first.bytes(), whole.substr(0, 10));
  EXPECT_EQ(first.whole_bytes(), 25u);
  EXPECT_EQ(first.whole_crc(), CrcOf(whole));
  EXPECT_EQ(Find(Wish(10, whole))->bytes(), whole.substr(10, 10));
  EXPECT_EQ(Find(Wish(20, whole))->bytes(), whole.substr(20));
  EXPECT_FALSE(Find(Wish(0, whole))) << "a first page is of a new one";
  EXPECT_FALSE(Find(Wish(25, whole)));
  EXPECT_FALSE(Find(Wish(10, TextOf(26))));
  question_.body = "of node 2";
  EXPECT_FALSE(Find(Wish(10, whole))) << "it was asked something else";
}

TEST_F(KeptAnswersTest, AnAnswerThatNobodyTakesGoes) {
  const std::string whole = TextOf(25);
  Take(Wish(0), whole);
  Settle(milliseconds(150));
  EXPECT_TRUE(Find(Wish(10, whole)));
  Settle(milliseconds(150));
  EXPECT_TRUE(Find(Wish(20, whole))) << "it was used";
  Settle(milliseconds(300));
  EXPECT_FALSE(Find(Wish(20, whole)));
  EXPECT_EQ(answers_.kept_bytes(), 0u);
}

TEST_F(KeptAnswersTest, AllWhoAskTheSameShareIt) {
  Take(Wish(0), TextOf(25));
  Take(Wish(0), TextOf(25));
  EXPECT_EQ(answers_.kept_bytes(), 25 + kQuestionBytes);
  Take(Wish(0), TextOf(25, 'A'));
  EXPECT_EQ(answers_.kept_bytes(), 2 * (25 + kQuestionBytes));
}

TEST_F(KeptAnswersTest, WhatWasAskedCountsToo) {
  question_.body = TextOf(5000);
  Take(Wish(0), TextOf(11));
  EXPECT_EQ(answers_.kept_bytes(), 5015u);
  question_.body = TextOf(5001);
  Take(Wish(0), TextOf(11));
  EXPECT_EQ(answers_.kept_bytes(), 5016u) << "the one before had to go";
}

TEST_F(KeptAnswersTest, NoMoreIsKeptThanTheLimitButTheNewest) {
  Take(Wish(0), TextOf(40));
  Settle(milliseconds(1));
  Take(Wish(0), TextOf(50));
  Settle(milliseconds(1));
  EXPECT_TRUE(Find(Wish(10, TextOf(40))));
  Settle(milliseconds(1));
  Take(Wish(0), TextOf(60));
  EXPECT_EQ(answers_.kept_bytes(), 40 + 60 + 2 * kQuestionBytes);
  EXPECT_FALSE(Find(Wish(10, TextOf(50)))) << "the longest unused";
  Take(Wish(0), TextOf(200));
  EXPECT_EQ(answers_.kept_bytes(), 200 + kQuestionBytes);
  EXPECT_TRUE(Find(Wish(10, TextOf(200))));
}

TEST_F(KeptAnswersTest, OneThatIsMadeAnewGoesOnIfItIsTheSame) {
  const std::string whole = TextOf(25);
  EXPECT_EQ(Take(Wish(10, whole), whole).bytes(), whole.substr(10, 10));
  EXPECT_EQ(Take(Wish(10, whole), whole).offset(), 10u);
}

TEST_F(KeptAnswersTest, OfOneThatHasChangedTheBeginningIsGiven) {
  const Page page = Take(Wish(10, TextOf(25)), TextOf(25, 'A'));
  EXPECT_EQ(page.offset(), 0u);
  EXPECT_EQ(page.bytes(), TextOf(10, 'A'));
  EXPECT_EQ(page.whole_crc(), CrcOf(TextOf(25, 'A')));
}

TEST_F(KeptAnswersTest, APageOfNothingIsRefused) {
  InTurn([&] {
    const auto page = answers_.Take(question_, PageWish(), TextOf(25));
    EXPECT_TRUE(absl::IsInvalidArgument(page.status())) << page.status();
  });
}

// --- both, over a network whose messages have 400 bytes at most ---

constexpr size_t kMessageMax = 400;
constexpr uint64_t kPage = 250;

class PagesTest : public TwoPeersFixture {
 protected:
  PagesTest() {
    network_.options().message_bytes_max = kMessageMax;
    Answer({});
  }

  void Answer(const PageLimits& limits) {
    answerer_.reset();
    answerer_.emplace(
        *executor_, *transport_, job_, "job", NodeSlot{0}, RandomId{}, [] {}, limits);
    answerer_->Answer<ManifestRequest, ManifestReply>(
        "manifests", [this](NodeSlot, const ManifestRequest&, auto done) {
          ++made_;
          done(on_asked_(made_));
        });
  }
  // Nothing is kept until the next page is asked for.
  void AnswerAnew() { Answer({.kept_for = Duration{}}); }

  static ManifestReply Manifests(int count, char first = 'a') {
    ManifestReply reply;
    for (int i = 0; i < count; ++i) reply.add_manifests(TextOf(100, first));
    return reply;
  }

  absl::StatusOr<ManifestReply> AskInPages(PageLimits limits, Duration timeout = seconds(1)) {
    asker_.emplace(
        *other_executor_, *other_transport_, job_, "job", NodeSlot{1}, RandomId{1}, [] {}, limits);
    absl::StatusOr<ManifestReply> answer = absl::UnknownError("no answer yet");
    other_executor_->Deliver(Duration{}, [&] {
      asker_->AskInPages<ManifestReply>(
          NodeSlot{0}, "manifests", ManifestRequest(), timeout,
          [&](absl::StatusOr<ManifestReply> reply) { answer = std::move(reply); });
    });
    Settle(seconds(2));
    return answer;
  }

  int made_ = 0;
  std::function<absl::StatusOr<ManifestReply>(int)> on_asked_ = [](int) { return Manifests(20); };
  std::optional<Peers> answerer_;
  std::optional<Peers> asker_;
};

TEST_F(PagesTest, WhatDoesNotFitIntoAMessageComesInPages) {
  const auto whole = Ask<ManifestReply>("manifests", ManifestRequest());
  EXPECT_TRUE(absl::IsResourceExhausted(whole.status())) << whole.status();
  made_ = 0;
  const auto paged = AskInPages({.page_bytes = kPage});
  ASSERT_TRUE(paged.ok()) << paged.status();
  EXPECT_EQ(paged->SerializeAsString(), Manifests(20).SerializeAsString());
  EXPECT_EQ(made_, 1) << "it is kept for its next pages";
}

TEST_F(PagesTest, AnAnswerThatIsAnotherMeanwhileComesAsItIsThen) {
  AnswerAnew();
  on_asked_ = [](int times) { return Manifests(20, times == 1 ? 'a' : 'A'); };
  const auto paged = AskInPages({.page_bytes = kPage});
  ASSERT_TRUE(paged.ok()) << paged.status();
  EXPECT_EQ(paged->SerializeAsString(), Manifests(20, 'A').SerializeAsString());
}

TEST_F(PagesTest, AnAnswerThatIsAnotherEachTimeIsGivenUp) {
  AnswerAnew();
  on_asked_ = [](int times) { return Manifests(20, static_cast<char>('a' + times)); };
  const auto paged = AskInPages({.page_bytes = kPage});
  EXPECT_TRUE(absl::IsUnavailable(paged.status())) << paged.status();
  EXPECT_THAT(std::string(paged.status().message()),
              AllOf(HasSubstr("node 0 manifests"), HasSubstr("another one")));
  EXPECT_LE(made_, 10);
}

TEST_F(PagesTest, WhatIsNotServedIsSaidAsWithoutPages) {
  on_asked_ = [](int) { return absl::NotFoundError("node 0 has no slab"); };
  const auto paged = AskInPages({.page_bytes = kPage});
  EXPECT_TRUE(absl::IsNotFound(paged.status())) << paged.status();
  EXPECT_THAT(std::string(paged.status().message()), HasSubstr("node 0 has no slab"));
}

TEST_F(PagesTest, WhoAnswersTooMuchIsNamedWithTheSizeAndTheLimit) {
  const auto paged = AskInPages({.page_bytes = kPage, .answer_bytes_max = 1000});
  EXPECT_TRUE(absl::IsResourceExhausted(paged.status())) << paged.status();
  EXPECT_THAT(std::string(paged.status().message()),
              AllOf(HasSubstr("node 0 manifests"), HasSubstr("has 2040 bytes"),
                    HasSubstr("answer_bytes_max is 1000")));
}

// A daemon of the release before: it looks at no field of the envelope that it does not know.
TEST_F(PagesTest, ADaemonOfAnEarlierReleaseAnswersWhole) {
  transport_->Serve("manifests", [](const std::string&, Transport::CallDone done) {
    done(Manifests(3).SerializeAsString());
  });
  const auto answer = AskInPages({.page_bytes = kPage});
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->manifests_size(), 3);
}

TEST_F(PagesTest, ADaemonOfAnEarlierReleaseIsAnsweredWhole) {
  on_asked_ = [](int) { return Manifests(3); };
  const auto answer = Ask<ManifestReply>("manifests", ManifestRequest());
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_EQ(answer->manifests_size(), 3);
}

// A byte at a time, of an answer that has a million of them.
TEST_F(PagesTest, WhoAnswersWithoutEndIsGivenUp) {
  const std::string whole = TextOf(1 << 20);
  int given = 0;
  transport_->Serve("manifests", [&](const std::string& request, Transport::CallDone done) {
    Envelope envelope;
    ASSERT_TRUE(envelope.ParseFromString(request));
    ++given;
    done(PageOf(whole, envelope.page().offset(), 1).SerializeAsString());
  });
  const auto answer = AskInPages({.page_bytes = kPage}, milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(answer.status())) << answer.status();
  EXPECT_THAT(std::string(answer.status().message()),
              AllOf(HasSubstr("node 0 manifests"), HasSubstr("of 1048576 bytes have come in 10")));
  EXPECT_GT(given, 10);
}

}  // namespace
}  // namespace unreft::smp
